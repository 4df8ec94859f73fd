"""Random programs, on every backend: what a replay gives is what the program gives."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashrt_ros.runtime.backend import Backend, Buffers, Program, Slots
from flashrt_ros.runtime.spec import ArenaLayout, BufferSpec, Role

Instruction = tuple[str, int, int]

instructions = st.lists(
    st.tuples(
        st.sampled_from(
            ["read", "constant", "sin", "add", "matmul", "turn", "scale", "row", "clone", "write"]
        ),
        st.integers(0, 30),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=25,
)


def interpret(code: list[Instruction]) -> Program:
    """Make a program that mixes values, views of them, and writes in place to any of them."""

    def program(buffers: Buffers, slots: Slots) -> None:
        names = ("a", "b", "c")
        values = [buffers["a"]]
        for op, left, right in code:
            x, y = values[left % len(values)], values[right % len(values)]
            if op == "read":
                values.append(buffers[names[left % 3]])
            elif op == "constant":
                values.append(torch.full((4, 4), float(left), device=x.device))
            elif op == "sin":
                values.append(torch.sin(x))
            elif op == "add":
                values.append(x + y)
            elif op == "matmul":
                values.append(torch.tanh(x @ y))
            elif op == "turn":
                values.append(x.t())
            elif op == "clone":
                values.append(x.clone())
            elif op == "scale":
                x.mul_(0.5)
            elif op == "row":
                x[left % 4].copy_(y[:, right % 4].clone())
            else:
                buffers[names[right % 3]].copy_(x.clone())
        buffers["c"].copy_(values[-1].clone())

    return program


@settings(
    max_examples=150,
    deadline=None,
    # A backend keeps nothing between captures, so that examples may share one.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(code=instructions)
def test_random_programs_replay_to_their_own_bytes(
    backend: Backend, lane_access: Any, code: list[Instruction]
) -> None:
    lane_bytes, put_lane_bytes = lane_access
    specs = [
        BufferSpec(name, (4, 4), "float32", role)
        for name, role in (("a", Role.STATE), ("b", Role.SCRATCH), ("c", Role.OUTPUT))
    ]
    program, layout = interpret(code), ArenaLayout.of(specs)
    with backend.create_arena(layout, num_lanes=2) as arena:
        arena.seal()
        graph = backend.capture(program, ("p",), arena, 0, {}).rebase(1)
        with backend.ordered():
            for name, view in arena.views(1).items():
                view.copy_(torch.arange(16.0).view(4, 4).sin() + ord(name))
        before = lane_bytes(backend, arena, 1)
        for _ in range(2):
            with backend.ordered(), torch.no_grad():
                program(arena.views(1), {})
            expected = lane_bytes(backend, arena, 1)
            put_lane_bytes(backend, arena, 1, before)
            graph.replay()
            backend.synchronize()
            before = lane_bytes(backend, arena, 1)
            assert before == expected
