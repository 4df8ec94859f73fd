"""What every room's tests share: a ROS domain of their own, and what the markers mean."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import TextIO

import pytest

# Above 101 the ports of a domain reach into the range that Linux gives to clients.
ROS_DOMAINS = range(1, 102)

_claim = pytest.StashKey[TextIO]()


def claim_ros_domain() -> tuple[int, TextIO]:
    """Take a ROS domain that no other test process of this machine has.

    Two test runs in one domain would find each other's nodes. The claim is a locked file, so that
    it ends with the process, however that ends.

    Returns:
        The domain, and the file to close when it is given back.
    """
    folder = Path(tempfile.gettempdir())
    for domain in ROS_DOMAINS:
        file = (folder / f"flashrt_ros_domain_{os.getuid()}_{domain}.lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            return domain, file
    raise pytest.UsageError("every ROS domain of this machine is taken by another test process")


def pytest_configure(config: pytest.Config) -> None:
    domain, config.stash[_claim] = claim_ros_domain()
    # in the environment, so that the processes which tests start are in the same domain
    os.environ["ROS_DOMAIN_ID"] = str(domain)
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_claim].close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if torch.cuda.is_available():
        return
    if os.environ.get("FLASHRT_REQUIRE_GPU") == "1":
        raise pytest.UsageError("FLASHRT_REQUIRE_GPU=1, but torch sees no CUDA device")
    for item in marked:
        item.add_marker(
            pytest.mark.skip(reason="no CUDA device; `pytest -m gpu` on a machine with one runs it")
        )


@pytest.fixture
def ros_domain_id() -> int:
    """The ROS domain of this test process; processes it starts inherit it."""
    return int(os.environ["ROS_DOMAIN_ID"])
