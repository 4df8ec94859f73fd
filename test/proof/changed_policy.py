"""The minimal policy, changed so that it hides something, and what a proof finds then."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from flashrt_ros.models.base import Buffers, Program, Slots
from flashrt_ros.models.minimal import ACTION_DIM, MinimalPolicy
from flashrt_ros.proof.prove import prove
from flashrt_ros.proof.report import Finding, Proof
from flashrt_ros.runtime.spec import BufferSpec, Role, ShapeKey

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

PAIR = (ACTION_DIM,)
LATCH, COMMIT, POP = ("latch",), ("commit",), ("pop",)


class Changed(MinimalPolicy):
    """The minimal policy with more buffers, or with more done in one program."""

    extra: tuple[BufferSpec, ...] = ()
    remarked: Mapping[str, Mapping[str, object]] = {}
    after: Mapping[ShapeKey, Program] = {}

    def buffers(self) -> tuple[BufferSpec, ...]:
        specs = (*super().buffers(), *self.extra)
        return tuple(
            BufferSpec(s.name, s.shape, s.dtype, s.role, **self.remarked[s.name])  # type: ignore[arg-type]
            if s.name in self.remarked
            else s
            for s in specs
        )

    def programs(self) -> Mapping[ShapeKey, Program]:
        programs = dict(super().programs())
        for key, more in self.after.items():
            programs[key] = both(programs[key], more)
        return programs


def both(first: Program, second: Program) -> Program:
    """Return a program that does one thing after the other."""

    def program(buffers: Buffers, slots: Slots) -> None:
        first(buffers, slots)
        second(buffers, slots)

    return program


def changed(
    *extra: BufferSpec,
    after: Mapping[ShapeKey, Callable[[Buffers], object]] | None = None,
    remarked: Mapping[str, Mapping[str, object]] | None = None,
    device: str = "cpu",
) -> Proof:
    """Prove the minimal policy after a change."""
    more = {key: _without_slots(program) for key, program in (after or {}).items()}

    def create() -> Changed:
        model = Changed()
        model.extra, model.after, model.remarked = extra, more, remarked or {}
        return model

    return prove(create, device=device)


def _without_slots(program: Callable[[Buffers], object]) -> Program:
    return lambda buffers, slots: program(buffers)


def the_finding(proof: Proof) -> Finding:
    """Return the only finding."""
    assert not proof.is_proved
    assert len(proof.findings) == 1, proof.findings
    return proof.findings[0]


def carry(role: Role) -> BufferSpec:
    """Declare the buffer that :data:`CARRIED` carries something in."""
    return BufferSpec("carry", PAIR, "float32", role)


CARRIED: Mapping[ShapeKey, Callable[[Buffers], object]] = {
    LATCH: lambda b: b["path"].add_(0.1 * b["carry"]),
    COMMIT: lambda b: b["carry"].copy_(b["path"][-1] - b["path"][0]),
}
