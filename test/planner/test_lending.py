from __future__ import annotations

import pytest

from flashrt_ros.errors import BackendError
from flashrt_ros.planner.lending import BlockPool
from flashrt_ros.runtime.cpu import CpuBackend


def test_a_block_is_lent_to_one_at_a_time_and_again_once_it_is_closed() -> None:
    with CpuBackend() as backend:
        pool = BlockPool(backend, 4096)
        first, second = pool.lend(), pool.lend()
        assert first.num_bytes == second.num_bytes == 4096
        assert first.address != second.address
        first.view()[:4] = b"here"
        address = first.address
        first.close()
        first.close()
        assert first.is_closed
        with pytest.raises(BackendError, match="closed"):
            first.view()
        third, fourth = pool.lend(), pool.lend()
        assert third.address == address
        assert bytes(third.view()[:4]) == b"here"
        assert len({block.address for block in (second, third, fourth)}) == 3
        assert third.tensor("uint8", (4,)).tolist() == list(b"here")
        pool.close()
        pool.close()
        for block in (second, third, fourth):
            block.close()
            assert block.is_closed
