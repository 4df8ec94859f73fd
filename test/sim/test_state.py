from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.episode.manifest import Part
from flashrt_ros.episode.participant import Taking
from flashrt_ros.errors import EpisodeError
from flashrt_ros.sim.state import KIND, SimPart, SimState, decode_state, encode_state

START = SimState(
    seed=1_000_000,
    episode_id="e1",
    agent=(0.25, 0.3),
    agent_velocity=(0.1, -0.2),
    block=(0.2, 0.25, 1.5),
    target=None,
    is_due=False,
)

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(agent=st.tuples(finite, finite), block=st.tuples(finite, finite, finite))
def test_every_bit_of_a_state_comes_back(
    agent: tuple[float, float], block: tuple[float, float, float]
) -> None:
    state = msgspec.structs.replace(START, agent=agent, block=block, target=agent)
    assert decode_state(encode_state(state)) == state


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\x80\x04K*.", encode_state(START)[:-1], b'{"seed": 1, "more": 2}']
)
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(EpisodeError, match="can't be read"):
        decode_state(data)


class Table:
    """What a part moves."""

    def __init__(self) -> None:
        self.state = START
        self.shown: list[bool] = []
        self.part = SimPart(lambda: self.state, self._put, self.shown.append)

    def _put(self, state: SimState) -> None:
        self.state = state


def test_a_put_is_shown_when_time_runs_again_and_taken_back_by_a_revert() -> None:
    table = Table()
    part = table.part
    part.hold()
    taken = part.take(Taking("one"))
    part.release()
    assert table.shown == [False]
    table.state = other = msgspec.structs.replace(START, seed=5)
    part.hold()
    part.check(taken)
    part.put(taken)
    assert table.state == START
    assert part.is_held
    part.release()
    assert table.shown == [False, True]
    part.revert()
    assert table.state == other
    assert table.shown == [False, True, True]
    part.revert()
    assert table.shown == [False, True, True]


def test_another_version_is_refused_and_changes_nothing() -> None:
    table = Table()
    table.part.hold()
    for verb in (table.part.check, table.part.put):
        with pytest.raises(EpisodeError, match=f"expected {KIND}, found flashrt-sim/2"):
            verb(Part("sim", "flashrt-sim/2", state=encode_state(START)))
    table.part.revert()
    assert table.state == START


def test_physics_go_on_from_a_state_as_they_went_on_after_it_was_taken() -> None:
    """In contact with the block, where the solver keeps something of its own."""
    pytest.importorskip("gym_pusht")
    from flashrt_ros.sim.table import Table as Physics
    from flashrt_ros.sim.table import TableState

    with Physics() as table:
        table.set_state(TableState((0.25, 0.4), (0.0, 0.0), (0.25, 0.25, 0.0)))
        target = (0.25, 0.2)
        for _ in range(8):
            table.step(target)
        assert table.block() != (0.25, 0.25, 0.0), "nothing was pushed"
        state = table.state()
        table.set_state(state)

        def go_on() -> list[TableState]:
            states = []
            for _ in range(8):
                table.step(target)
                states.append(table.state())
            return states

        first = go_on()
        table.set_state(state)
        assert go_on() == first
        table.set_state(TableState(state.agent, (0.0, 0.0), state.block))  # the control
        assert go_on() != first
