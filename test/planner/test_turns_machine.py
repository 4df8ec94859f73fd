"""Turns in any order of instructions, nodes and verbs, against turns that nothing disturbed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flashrt_ros.engine import protocol
from flashrt_ros.errors import AbandonedError
from flashrt_ros.planner.engine import PlannerEngine
from test.planner import toy_planner
from test.planner.conftest import Rig, make_config, reset

History = tuple[str, ...]
"""What was said on a text, in order."""

TEXTS = ("go left", "and back", "go round the block on its far side, and stay there " * 3)
MAX_TOKENS = 20


@lru_cache(None)
def engines() -> tuple[Rig, Rig]:
    """The engine that is disturbed, and one for reference; they live as long as the process."""
    config = make_config(
        num_environments=2, max_tokens=MAX_TOKENS, interrupt_depth=2, max_positions=1024
    )
    model, tokenizer = toy_planner.make(None, config)
    rigs = [Rig(PlannerEngine(model, tokenizer, config)) for _ in range(2)]
    return rigs[0], rigs[1]


@lru_cache(None)
def undisturbed(history: History, seed: int) -> protocol.TurnDone:
    """The last turn of a text on which every turn ran to its end."""
    rig = engines()[1]
    reset(rig)
    for index, said in enumerate(history):
        mode = "append" if index else "new"
        done = rig.instruct(said, mode=mode, temperature=1.0, seed=seed)
    return done


@dataclass
class Asked:
    """A turn, as the machine knows it."""

    history: History
    answers: list[Any]
    num_nodes: int = 0


@dataclass
class Text:
    """One environment, as it ought to be."""

    history: History = ()
    turn: Asked | None = None
    unfinished: list[Asked] = field(default_factory=list)


class TurnsMachine(RuleBasedStateMachine):
    """Two environments of one engine."""

    @initialize(seed=st.integers(0, 3))
    def begin(self, seed: int) -> None:
        self.rig = engines()[0]
        self.seed = seed
        reset(self.rig)
        self.texts = [Text(), Text()]

    @rule(env_index=st.integers(0, 1), said=st.sampled_from(TEXTS), is_new=st.booleans())
    def instruct(self, env_index: int, said: str, is_new: bool) -> None:
        text = self.texts[env_index]
        is_new = is_new or not text.history or len(text.history) == 3
        before = text.turn
        answers = self.rig.begin(
            said,
            env_index=env_index,
            mode="new" if is_new else "append",
            temperature=1.0,
            seed=self.seed,
        )
        if before is not None:
            self.abandoned(before)
            if before.num_nodes:
                text.unfinished = [*text.unfinished, before][-2:]
        text.turn = Asked(((said,) if is_new else (*text.history, said)), answers)

    @rule(count=st.integers(1, 12))
    def run_nodes(self, count: int) -> None:
        for _ in range(count):
            if not self.rig.engine.has_work:
                return
            turns = [env.turn for env in self.rig.engine.core.environments]
            before = [turn.num_nodes if turn is not None else -1 for turn in turns]
            self.rig.engine.advance()
            for text, turn, nodes in zip(self.texts, turns, before, strict=True):
                if turn is not None and turn.num_nodes > nodes:
                    assert text.turn is not None
                    text.turn.num_nodes += 1
                    assert turn.num_nodes == nodes + 1, "one node at a time"
            self.note_ends()

    @precondition(lambda self: any(text.turn for text in self.texts))
    @rule()
    def run_to_the_end(self) -> None:
        self.rig.run()
        self.note_ends()

    @rule(env_index=st.integers(0, 1))
    def interrupt(self, env_index: int) -> None:
        text = self.texts[env_index]
        if text.turn is None or len(text.unfinished) == 2:
            return
        reply = self.rig.engine.interrupt(protocol.Interrupt(0, env_index, "", False, None))
        self.abandoned(text.turn)
        assert reply.boundary == text.turn.num_nodes
        if text.turn.num_nodes:
            text.unfinished.append(text.turn)
        text.turn = None

    @rule(env_index=st.integers(0, 1))
    def resume(self, env_index: int) -> None:
        text = self.texts[env_index]
        if not text.unfinished:
            return
        answers: list[Any] = []
        self.rig.engine.begin(protocol.ResumeTurn(0, env_index), answers.append)
        if text.turn is not None:
            self.abandoned(text.turn)
        text.turn = text.unfinished.pop()
        text.turn.answers = answers

    @rule(env_index=st.integers(0, 1))
    def cancel(self, env_index: int) -> None:
        text = self.texts[env_index]
        if text.turn is None:
            return
        self.rig.engine.handle(protocol.CancelTurn(0, env_index))
        self.abandoned(text.turn)
        text.turn = None

    @rule(env_index=st.integers(0, 1))
    def go_home(self, env_index: int) -> None:
        text = self.texts[env_index]
        self.rig.engine.handle(protocol.Restore(0, env_index, "home", False, None, True, "", 0))
        if text.turn is not None:
            self.abandoned(text.turn)
        self.texts[env_index] = Text()

    @rule(env_index=st.integers(0, 1))
    def go_back(self, env_index: int) -> None:
        text = self.texts[env_index]
        if len(text.history) < 2:
            return
        self.rig.engine.handle(protocol.Rollback(0, env_index, 1, ""))
        if text.turn is not None:
            self.abandoned(text.turn)
        text.turn = None
        text.history = text.history[:-1]

    @invariant()
    def engine_and_model_agree(self) -> None:
        for text, env in zip(self.texts, self.rig.engine.core.environments, strict=True):
            assert (env.turn is None) == (text.turn is None)
            assert len(env.unfinished) == len(text.unfinished)
            assert [e.turn.num_nodes for e in env.unfinished] == [
                asked.num_nodes for asked in text.unfinished
            ]
        held = sum(len(e.unfinished) + len(e.boundaries) for e in self.rig.engine.core.environments)
        assert sum(info.is_automatic for info in self.rig.capsules()) <= held + 2

    def note_ends(self) -> None:
        for text in self.texts:
            if text.turn is None or not text.turn.answers:
                continue
            done = text.turn.answers[0]
            assert isinstance(done, protocol.TurnDone), done
            alone = undisturbed(text.turn.history, self.seed)
            assert done.tokens == alone.tokens
            assert done.log_probability == alone.log_probability
            assert done.num_positions == alone.num_positions
            text.history = text.turn.history
            text.turn = None

    def abandoned(self, asked: Asked) -> None:
        assert isinstance(asked.answers[0], AbandonedError)
        assert len(asked.answers) == 1


TurnsMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestTurns = TurnsMachine.TestCase
