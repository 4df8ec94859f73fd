"""A ROS domain that no other demo or test run of this machine has."""

from __future__ import annotations

import fcntl
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flashrt_ros.demo.waiting import ScenarioError

DOMAINS = range(1, 102)
"""Above, the ports of a domain reach into the range that Linux gives to clients."""


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
