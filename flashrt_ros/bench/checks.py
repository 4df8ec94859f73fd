"""What a bench does before it times anything: look whether the bytes are right."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flashrt_ros.bench.failures import WrongResultError


def require_equal(
    what: str, found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> None:
    """Compare buffers bit by bit.

    Args:
        what: What made ``found``, for the message.
        found: By name.
        expected: By name; the names that are compared.

    Raises:
        WrongResultError: Bytes differ; names the buffers.
    """
    differing = [name for name, want in expected.items() if not same_bytes(found[name], want)]
    if differing:
        raise WrongResultError(
            f"{what} gave other bytes than expected in {', '.join(differing[:5])}"
            f"{' and others' if len(differing) > 5 else ''}"
        )


def require_different(
    what: str, found: Mapping[str, torch.Tensor], reference: Mapping[str, torch.Tensor]
) -> None:
    """Make sure that a comparison could fail: something must differ before it is put right.

    Args:
        what: What should have changed bytes, for the message.
        found: By name.
        reference: By name.

    Raises:
        WrongResultError: Not a byte differs.
    """
    if all(same_bytes(found[name], value) for name, value in reference.items()):
        raise WrongResultError(f"{what} changed nothing, so that a comparison would prove nothing")


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare two tensors bit by bit, so that NaN equals itself and -0 differs from 0."""
    return torch.equal(_bytes(one), _bytes(other))


def copies(views: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Clone tensors, by name."""
    return {name: view.clone() for name, view in views.items()}


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
