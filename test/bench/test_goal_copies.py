"""The count of copies of a goal: none in place, one where the channel is staged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from flashrt_ros.bench.context import Cast, Context
from flashrt_ros.bench.engines import engine_parameters, hired
from flashrt_ros.bench.goal import SlotLink
from flashrt_ros.bench.models import goal_factory


@pytest.mark.parametrize(("staged", "is_counted"), [((), False), (("goal",), True)])
def test_a_staged_goal_is_counted(
    staged: tuple[str, ...], is_counted: bool, make_context: Callable[..., Context]
) -> None:
    context = make_context()
    cast = Cast(engine_parameters(context, staged_channels=staged), goal_factory(4096))
    with hired(context, cast) as (client, _):
        client.activate(tick_source="step")
        client.subscribe(chunks=True)
        client.open_writer("observation").write(stamp_ns=1, position=np.zeros(2, np.float32))
        link = SlotLink(client, client.open_writer("goal"))
        assert (link.num_copies(np.arange(512)) > 0) is is_counted
