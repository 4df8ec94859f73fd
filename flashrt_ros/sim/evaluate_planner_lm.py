"""Measure how often the planner's language model answers with exactly the right plan.

    python -m flashrt_ros.sim.evaluate_planner_lm --turns 500 [--untrained SEED] [--shuffled]
    python -m flashrt_ros.sim.evaluate_planner_lm --turns 500 --outside

Every turn is held out: training saw neither its words nor, for some, its steps together. With
``--outside`` none is about the table, and the right plan has no subgoal. Each begins with a
restore of the prefix's capsule and is decoded greedily, by the programs that the planner
replays.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch

from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.models.hybrid_session import HybridSession
from flashrt_ros.models.hybrid_tokenizer import HybridTokenizer
from flashrt_ros.models.planner_lm import load_planner_lm
from flashrt_ros.models.planner_text import MAX_ANSWER_TOKENS, PLANNER_PREFIX
from flashrt_ros.runtime.cpu import CpuBackend
from flashrt_ros.runtime.graph import GraphSet
from flashrt_ros.runtime.lanes import Lane
from flashrt_ros.runtime.noise import NoiseRing
from flashrt_ros.runtime.spec import ArenaLayout
from flashrt_ros.sim.instructions import FAMILIES, Turn, sample_turn
from flashrt_ros.sim.outside import KINDS, sample_outside

POSITIONS = 320
"""Of the lane: prefix, longest turn and its answer; attention's cost grows with it."""

_CONFIDENCE = 1.96  # deviations of a normal distribution that hold 95% of it


@contextmanager
def open_session(model: HybridLm) -> Iterator[HybridSession]:
    """Capture a model's programs on the CPU and open a session over one lane."""
    with ExitStack() as stack:
        backend = stack.enter_context(CpuBackend())
        layout = ArenaLayout.of(model.buffers())
        arena = stack.enter_context(backend.create_arena(layout, num_lanes=1))
        arena.seal()
        noise = stack.enter_context(NoiseRing(model.noise_shape, num_slots=4, backend=backend))
        programs = model.programs()
        graphs = stack.enter_context(GraphSet(backend, programs, arena, noise.slots))
        yield stack.enter_context(HybridSession(model, graphs, Lane(graphs, 0), noise))


def sample_held_out(count: int, seed: int) -> list[Turn]:
    """Draw turns that training must not see; equal seeds give equal turns."""
    random = Random(f"{seed} evaluation")
    return [sample_turn(random, held_out=True) for _ in range(count)]


def sample_held_out_outside(count: int, seed: int) -> list[Turn]:
    """Draw turns that are none about the table and that training must not see."""
    random = Random(f"{seed} outside")
    return [sample_outside(random, held_out=True) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one turn was answered.

    Attributes:
        turn: What was said, and the right plan.
        answer: What the model said.
    """

    turn: Turn
    answer: str

    @property
    def is_exact(self) -> bool:
        """Whether every character of the plan is right."""
        return self.answer == self.turn.answer


def answer_turns(
    session: HybridSession, tokenizer: HybridTokenizer, prompts: Iterable[str]
) -> Iterator[str]:
    """Answer prompts one by one, each right after the prefix.

    Args:
        session: On any text; left in the last answer.
        tokenizer: Of its model.
        prompts: As :attr:`Turn.prompt`.

    Yields:
        The text up to the token that ends it, or up to the longest answer.
    """
    session.reset()
    session.append(tokenizer.encode(PLANNER_PREFIX))
    end = session.model.config.eos_token_ids
    with closing(session.snapshot(align_down=True)) as prefix:
        for prompt in prompts:
            session.restore(prefix)
            session.append(tokenizer.encode(prompt))
            yield tokenizer.decode(session.decode(MAX_ANSWER_TOKENS, stop=end))


def evaluate(
    model: HybridLm, tokenizer: HybridTokenizer, turns: Sequence[Turn], *, is_shuffled: bool = False
) -> list[Outcome]:
    """Answer every turn.

    Args:
        model: Its programs are captured and replayed on the CPU.
        tokenizer: Of the model.
        turns: With the right plans.
        is_shuffled: Show the model another turn's prompt each time, as a control.
    """
    prompts = [turn.prompt for turn in turns]
    if is_shuffled:
        prompts = [*prompts[1:], *prompts[:1]]
    with open_session(model) as session:
        answers = answer_turns(session, tokenizer, prompts)
        return [Outcome(turn, answer) for turn, answer in zip(turns, answers, strict=True)]


@dataclass(frozen=True, slots=True)
class Summary:
    """Shares of exact answers.

    Attributes:
        turns: How many were answered.
        exact: Share of right plans.
        exact_low: Lower end of its 95% confidence interval (Wilson).
        exact_high: Upper end.
        composition: Share among turns whose steps were never seen together, and their number.
        wording: Share among those whose text was never seen, and their number.
        families: Share and number of each kind of template that there was.
        wrong: Up to ten turns that were answered wrongly: said, wanted, answered.
    """

    turns: int
    exact: float
    exact_low: float
    exact_high: float
    composition: tuple[float, int]
    wording: tuple[float, int]
    families: dict[str, tuple[float, int]]
    wrong: tuple[tuple[str, str, str], ...]


def summarise(outcomes: Sequence[Outcome]) -> Summary:
    """Return the shares over a run of one turn or more."""
    low, high = confidence(sum(o.is_exact for o in outcomes), len(outcomes))
    wrong = [(o.turn.prompt, o.turn.answer, o.answer) for o in outcomes if not o.is_exact]

    def share(flags: list[bool]) -> tuple[float, int]:
        return (round(sum(flags) / len(flags), 4) if flags else 0.0), len(flags)

    def of_split(name: str) -> tuple[float, int]:
        return share([o.is_exact for o in outcomes if o.turn.instruction.held_out == name])

    return Summary(
        turns=len(outcomes),
        exact=share([o.is_exact for o in outcomes])[0],
        exact_low=low,
        exact_high=high,
        composition=of_split("composition"),
        wording=of_split("wording"),
        families={
            family: share([o.is_exact for o in outcomes if o.turn.instruction.family == family])
            for family in (*FAMILIES, *KINDS)
            if any(o.turn.instruction.family == family for o in outcomes)
        },
        wrong=tuple(wrong[:10]),
    )


def confidence(count: int, total: int) -> tuple[float, float]:
    """Return the 95% interval of a share by Wilson's score, both ends rounded.

    Args:
        count: Successes.
        total: Trials, positive.
    """
    share, square = count / total, _CONFIDENCE**2
    middle = (share + square / (2 * total)) / (1 + square / total)
    width = math.sqrt(share * (1 - share) / total + square / (4 * total**2))
    half = _CONFIDENCE * width / (1 + square / total)
    return round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate from the command line; print one JSON object."""
    parser = argparse.ArgumentParser(description="Evaluate the planner's language model.")
    parser.add_argument("--turns", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the turns")
    parser.add_argument("--model", type=Path, default=None, help="folder of a checkpoint")
    parser.add_argument("--untrained", type=int, default=None, metavar="SEED")
    parser.add_argument("--shuffled", action="store_true", help="show another turn's prompt")
    parser.add_argument("--outside", action="store_true", help="turns that are none about it")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model, tokenizer = load_planner_lm(options.model, max_positions=POSITIONS)
    if options.untrained is not None:
        model = HybridLm.random(model.config, options.untrained, max_positions=POSITIONS)
    sample = sample_held_out_outside if options.outside else sample_held_out
    turns = sample(options.turns, options.seed)
    summary = summarise(evaluate(model, tokenizer, turns, is_shuffled=options.shuffled))
    print(json.dumps(asdict(summary), indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
