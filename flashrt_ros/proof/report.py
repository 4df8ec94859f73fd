"""What a proof found, in a form that prints and that goes into a JSON file."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from flashrt_ros.errors import ProofError


class CheckName(enum.Enum):
    """The parts of a proof; stable names for the JSON file."""

    CAPTURE = "capture"
    REPLAY = "replay"
    COUNTERS = "counters"
    POISON = "poison"
    LANE = "lane"
    FRESH = "fresh"
    HISTORIES = "histories"
    DAMAGE = "damage"


QUESTIONS = {
    CheckName.CAPTURE: "is every program captured, and the plan sound?",
    CheckName.REPLAY: "does a program do again what its graph replays?",
    CheckName.COUNTERS: "do counters and inputs say what the engine takes them to say?",
    CheckName.POISON: "is nothing read but STATE and INPUT after a restore?",
    CheckName.LANE: "does another lane give the same bytes?",
    CheckName.FRESH: "does a fresh instance give the same bytes?",
    CheckName.HISTORIES: "does a used lane, restored, equal a fresh start?",
    CheckName.DAMAGE: "does every STATE buffer matter?",
}
"""What each part asks."""


class Verdict(enum.Enum):
    """What damaging a STATE buffer showed; stable names for the JSON file.

    ``MATTERS``: what follows changed. ``NOISE``: the noise it gives changed. ``INERT``:
    nothing followed, as its mark says. ``DEAD``: nothing followed, and no mark says so.
    ``MISMARKED``: its mark says that nothing follows, and something did, or that it
    gives the noise, and it does not.
    """

    MATTERS = "matters"
    NOISE = "noise"
    INERT = "inert"
    DEAD = "dead"
    MISMARKED = "mismarked"


class Finding(msgspec.Struct, frozen=True):
    """One reason why a model is not proved.

    Attributes:
        check: The part that found it.
        subject: Name of the buffer at fault, or of the memory or program.
        message: What was seen and what to do.
    """

    check: CheckName
    subject: str
    message: str


class CheckResult(msgspec.Struct, frozen=True):
    """One part of a proof.

    Attributes:
        check: Which.
        question: What it asks.
        num_runs: Comparisons made.
        passed: Whether all held.
    """

    check: CheckName
    question: str
    num_runs: int
    passed: bool


class BufferResult(msgspec.Struct, frozen=True):
    """What damaging one STATE buffer showed.

    Attributes:
        buffer: Its name.
        num_bytes: Its size.
        mark: "counter", "provenance", "noise" or "".
        verdict: What was concluded.
        reached: Buffers that changed after it was damaged, "noise" for the noise.
        after_ticks: Ticks until the first of them changed, -1 for never.
        damage: The damage that showed it, or "" where none did.
        num_runs: Damaged runs made.
    """

    buffer: str
    num_bytes: int
    mark: str
    verdict: Verdict
    reached: tuple[str, ...]
    after_ticks: int
    damage: str
    num_runs: int


class Proof(msgspec.Struct, frozen=True):
    """Outcome of a proof.

    Attributes:
        model: Registry name.
        weights_digest: Of the weights it ran with.
        device: Where it ran.
        seed: Of the histories.
        num_ticks: Ticks compared after each boundary.
        duration_s: Wall time, s.
        checks: In the order they ran; a proof that ends early has fewer.
        buffers: One entry for each STATE buffer, in layout order.
        findings: Empty when the declared state is the whole state.
    """

    model: str
    weights_digest: str
    device: str
    seed: int
    num_ticks: int
    duration_s: float
    checks: tuple[CheckResult, ...]
    buffers: tuple[BufferResult, ...]
    findings: tuple[Finding, ...]

    @property
    def is_proved(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def require(self) -> None:
        """Return if the model is proved.

        Raises:
            ProofError: It is not; names the first buffer at fault.
        """
        if self.findings:
            first = self.findings[0]
            raise ProofError(
                f"the declared state of model '{self.model}' is not the whole state: "
                f"'{first.subject}' {first.message}",
                found=f"{len(self.findings)} findings",
            )

    def to_json(self) -> bytes:
        """Return the proof as indented JSON, with ``proved`` beside the fields."""
        plain = {"proved": self.is_proved, **msgspec.to_builtins(self)}
        return msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n"

    def write(self, path: Path) -> None:
        """Write :meth:`to_json` to a file.

        Raises:
            OSError: The file can't be written.
        """
        path.write_bytes(self.to_json())
