"""What judging numbers is worth with the packaged model: ``python number_figures.py [COUNT]``.

Held-out sentences and scenes, greedy, from the prefix's capsule; prints how many were exact,
refused, or led elsewhere, with ``numbers`` of the planner engine free and checked.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from random import Random

import torch

from flashrt_ros.engine import protocol
from flashrt_ros.errors import FlashrtError
from flashrt_ros.planner.config import CHECKED, FREE, PlannerConfig
from flashrt_ros.planner.engine import PlannerEngine
from flashrt_ros.planner.members import load_model
from flashrt_ros.sim.instructions import sample_instruction, sample_scene
from flashrt_ros.sim.outside import sample_outside

SEED = 11


def with_numbers(count: int) -> Iterator[tuple[str, str, str]]:
    """Yield instruction, scene and plan of sentences about the table that spell out numbers."""
    random = Random(SEED)
    while count:
        instruction, scene = sample_instruction(random), sample_scene(random)
        if any(character.isdigit() for character in instruction.text):
            count -= 1
            yield instruction.text, scene.text, instruction.plan(scene)


def off_the_table(count: int) -> Iterator[tuple[str, str, str]]:
    """Yield points off the table, distances and turns, which are to be refused."""
    random = Random(SEED)
    while count:
        turn = sample_outside(random, held_out=True)
        if turn.instruction.family in ("beyond", "distance"):
            count -= 1
            *scene, words = turn.prompt.strip().split("\n")
            yield words, "".join(scene), "done"


def answer(engine: PlannerEngine, words: str, scene: str) -> str:
    """Return the plan, "done" also where the engine refused it."""
    try:
        done = engine.handle(protocol.Instruct(0, 0, words.encode(), context=scene.encode()))
    except FlashrtError:
        return "done"
    assert isinstance(done, protocol.TurnDone)
    return done.text


def main() -> None:
    count = int(sys.argv[1]) if sys.argv[1:] else 200
    torch.set_num_threads(1)
    for numbers in (FREE, CHECKED):
        config = PlannerConfig(numbers=numbers)
        model, tokenizer, habits = load_model(config)
        with PlannerEngine(model, tokenizer, config, habits=habits) as engine:
            for name, turns in (
                ("with numbers", with_numbers(count)),
                ("to be refused", off_the_table(2 * count)),
            ):
                found: Counter[str] = Counter()
                for words, scene, plan in turns:
                    text = answer(engine, words, scene)
                    found[
                        "right" if text == plan else "refused" if text == "done" else "elsewhere"
                    ] += 1
                print(f"numbers: {numbers}, {name}: {dict(found)}")


if __name__ == "__main__":
    main()
