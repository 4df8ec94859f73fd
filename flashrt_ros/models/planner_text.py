r"""What the planner's small model reads and answers; imports without torch.

A text is :data:`PLANNER_PREFIX`, then turns. A turn is what :func:`turn_text` makes, and the
answer after it::

    \n
    block at 0.243 0.311; pusher at 0.104 0.397\n      the scene, where it is known
    go round the block to the lower left, then back\n  the instruction
    go 0.133 0.311; go 0.128 0.384; go 0.104 0.397; done

An answer is subgoals, ``go X Y``, each followed by ``; ``, and ``done``: metres in the table's
frame, three decimals. ``done`` alone says that the instruction can't be followed. After ``done``
the model chooses the token that ends a text; leave it out, and append the next turn.
"""

from __future__ import annotations

PLANNER_PREFIX = (
    "You move a pusher on a table seen from above.\n"
    "Answer with subgoals for the pusher in metres, then done.\n"
    "The table is 0.512 wide and 0.512 deep: x grows to the right, y to the bottom.\n"
    "A block may stand in the way: go round it."
)
"""What every text of the model begins with; it was trained with no other."""

STOP = "stop"
"""What the model understands as to stay where the pusher is, given a scene."""

HOLDS: tuple[str, ...] = (
    "be still",
    "do not move",
    "do nothing",
    "don't go anywhere",
    "don't move",
    "emergency stop",
    "freeze",
    "halt",
    "hold",
    "hold on",
    "hold position",
    "hold your position",
    "keep still",
    "pause",
    "remain",
    "remain still",
    "stand by",
    "stand still",
    "stay put",
    "stop immediately",
    "stop moving",
    "stop right now",
    "stop the pusher",
    "stop the robot",
    "wait a minute",
)
"""What means :data:`STOP` as well, and the model would refuse or not always understand."""

MAX_ANSWER_TOKENS = 96
"""Longest answer that the model was trained on, rounded up; nine subgoals and ``done``."""


def turn_text(instruction: str, scene: str = "") -> str:
    """Return what is appended for an instruction; the answer begins right after it.

    Args:
        instruction: Free text; runs of white space become one space, as a line break ends
            an instruction.
        scene: Of :func:`scene_text`; empty where it is unknown.
    """
    line = " ".join(instruction.split())
    return f"\n{scene}\n{line}\n" if scene else f"\n{line}\n"


def scene_text(block: tuple[float, float], pusher: tuple[float, float]) -> str:
    """Return the line that tells the model where things are.

    Args:
        block: Centre of gravity of the block, m.
        pusher: Position of the pusher, m.
    """
    return f"block at {block[0]:.3f} {block[1]:.3f}; pusher at {pusher[0]:.3f} {pusher[1]:.3f}"
