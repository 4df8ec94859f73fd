"""A ROS domain that no other demo or test run of this machine has."""

from __future__ import annotations

import fcntl
import os
import random
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flashrt_ros.demo.waiting import ScenarioError

DOMAINS = range(1, 102)
"""Above, the ports of a domain reach into the range that Linux gives to clients."""

_DOMAIN, _RANGE = "ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE"


@contextmanager
def ros_domain() -> Iterator[None]:
    """Have a ROS domain of one's own on this machine, for this process and those it starts.

    One that ``ROS_DOMAIN_ID`` names already stays, and so does a range of discovery. The
    environment is put back at the end.

    Raises:
        ScenarioError: As :func:`own_domain`.
    """
    with ExitStack() as exits:
        exits.callback(_put_back, {name: os.environ.get(name) for name in (_DOMAIN, _RANGE)})
        if _DOMAIN not in os.environ:
            os.environ[_DOMAIN] = str(exits.enter_context(own_domain()))
        os.environ.setdefault(_RANGE, "LOCALHOST")
        yield


@contextmanager
def own_domain() -> Iterator[int]:
    """Hold a ROS domain, chosen at random; other processes that ask get another one.

    The claim is a locked file, so that it ends with the process, however that ends.

    Yields:
        The domain's number.

    Raises:
        ScenarioError: Every domain is taken.
    """
    folder = Path(tempfile.gettempdir())
    for domain in random.sample(DOMAINS, len(DOMAINS)):
        path = folder / f"flashrt_ros_domain_{os.getuid()}_{domain}.lock"
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield domain
            return
    raise ScenarioError("every ROS domain of this machine is taken; set ROS_DOMAIN_ID")


def _put_back(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
