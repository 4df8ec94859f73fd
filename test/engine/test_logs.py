from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from flashrt_ros.engine.logs import LossyHandler


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            assert fd == reader


def logger_to(handler: LossyHandler) -> logging.Logger:
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger


def test_records_are_written(pipe: tuple[int, int]) -> None:
    logger = logger_to(LossyHandler(pipe[1]))
    logger.warning("one %s", "ä")
    logger.warning("x" * 10_000)
    assert os.read(pipe[0], 65536).decode() == "one ä\n" + "x" * 10_000 + "\n"


def test_a_reader_that_is_stuck_costs_lines_and_no_time(pipe: tuple[int, int]) -> None:
    handler = LossyHandler(pipe[1])
    logger = logger_to(handler)
    for _ in range(1000):  # a handler that blocked would never get to the end of this
        logger.warning("y" * 999)
    num_lost = handler.num_lost
    assert num_lost > 0
    while len(os.read(pipe[0], 65536)) == 65536:
        pass
    logger.warning("after")
    assert os.read(pipe[0], 65536).endswith(
        f"WARNING {num_lost} lines before this one were lost\nafter\n".encode()
    )
    assert handler.num_lost == 0


def test_a_reader_that_is_gone_is_no_error(pipe: tuple[int, int]) -> None:
    logger = logger_to(LossyHandler(pipe[1]))
    os.close(pipe[0])
    logger.warning("nobody hears this")
