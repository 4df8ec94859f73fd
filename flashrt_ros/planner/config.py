"""Configuration of a planner engine, validated once; imports without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from flashrt_ros.engine.config import EngineConfig, check_ranges
from flashrt_ros.errors import ConfigError
from flashrt_ros.planner.grammar import PlanGrammar
from flashrt_ros.planner.reading import bare_words
from flashrt_ros.runtime.devices import check_device

RANGES: dict[str, tuple[float, float]] = {
    "num_environments": (1, 64),
    "max_positions": (128, 1 << 20),
    "chunk_length": (64, 1 << 16),
    "max_tokens": (1, 1 << 16),
    "temperature": (0.0, 100.0),
    "seed": (0, 1 << 62),
    "max_candidates": (1, 256),
    "subgoal_decimals": (0, 6),
    "rollback_depth": (1, 1024),
    "interrupt_depth": (1, 64),
    "capsule_quota_bytes": (0, 1 << 50),
    "capsule_host_quota_bytes": (0, 1 << 50),
    "capsule_disk_quota_bytes": (0, 1 << 50),
    "move_slice_bytes": (4096, 1 << 32),
    "slack_reserve_us": (0, 1_000_000),
    "slack_floor_ms": (0.0, 3_600_000.0),
    "num_threads": (1, 256),
}
"""Smallest and largest value of each parameter that has a range."""

CHECKED = "checked"
"""Of the parameter ``numbers``: what an instruction spells out is judged."""

FREE = "free"
"""Of the parameter ``numbers``: it is the model's alone."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class PlannerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a planner engine is told at its start.

    Attributes:
        name: Engine name; a namespace and slashes are fine.
        model: Name of the language model.
        checkpoint: Folder of a checkpoint; "" takes the packaged one.
        device: "cpu", "cuda" (device 0) or "cuda:N".
        num_environments: Environments served at once.
        max_positions: Most tokens of a text.
        chunk_length: Tokens of a prefill step, a multiple of 64; an instruction that comes
            meanwhile waits for one.
        prefixes: What every text begins with, 'name = text' each, in this order; empty
            takes what the packaged model was trained with.
        turn_begin: Text before each instruction.
        turn_end: Text between an instruction and its plan.
        has_control_tokens: Whether prefixes, `turn_begin` and `turn_end` may name control
            tokens; an instruction never may.
        max_tokens: Most tokens of a plan, where an instruction does not say.
        temperature: Of sampling, where an instruction does not say; 0 takes the likeliest token.
        seed: Of sampling, where an instruction does not say.
        max_candidates: Most plans that are compared for one instruction.
        synonyms: Instructions that the model is given in other words, 'stand still = stop' each;
            empty takes those that the packaged model needs.
        numbers: `checked` refuses points outside the range of subgoals, lengths that belong to
            no point, and plans that leave out a point that was said; `free` leaves numbers to
            the model; empty: `checked` for the packaged model, `free` for another.
        scorers: What may judge plans, 'name = module:function' each, besides `log_probability`.
        subgoal_low: Smallest coordinate of a subgoal, m.
        subgoal_high: Largest coordinate of a subgoal, m.
        subgoal_decimals: Decimals of a coordinate.
        subgoal_frame: Frame of the coordinates.
        may_refuse: Whether a plan may have no subgoal, which says that the instruction can't
            be followed; the packaged model was trained to.
        rollback_depth: Turns kept per environment, newest first.
        interrupt_depth: Unfinished turns an environment may stack up.
        capsule_quota_bytes: Memory beside the lanes that callers' capsules may take, bytes.
        capsule_host_quota_bytes: Host memory below it, on a device with memory of its own, bytes.
        capsule_disk_quota_bytes: Disk below them, in `capsule_folder`, bytes of payload.
        capsule_folder: Folder for capsule files, mode 0700; "" for none: then nothing
            survives the engine, and nothing moves to disk.
        move_slice_bytes: Bytes moved at a time between tiers.
        host: Name of the engine whose process it joins, where it runs in that one's slack; "" for
            a process of its own.
        slack_reserve_us: Left free before the deadlines of the host, besides what a plan node
            takes, us.
        slack_floor_ms: Longest that a plan node waits for slack that it fits in; then it runs,
            and may delay a tick; 0 lets it wait for ever.
        num_threads: Intra-op threads; changing it changes the bytes.
        socket_group: Group that may connect besides the user, "" for none.

    Raises:
        ConfigError: A value is out of range, or an entry of a list can't be read.
    """

    name: str = "planner_engine"
    model: str = "planner_lm"
    checkpoint: str = ""
    device: str = "cpu"
    num_environments: int = 1
    max_positions: int = 1024
    chunk_length: int = 64
    prefixes: tuple[str, ...] = ()
    turn_begin: str = "\n"
    turn_end: str = "\n"
    has_control_tokens: bool = False
    max_tokens: int = 96
    temperature: float = 0.0
    seed: int = 0
    max_candidates: int = 16
    synonyms: tuple[str, ...] = ()
    numbers: str = ""
    scorers: tuple[str, ...] = ()
    subgoal_low: float = 0.0
    subgoal_high: float = 0.512
    subgoal_decimals: int = 3
    subgoal_frame: str = "table"
    may_refuse: bool = True
    rollback_depth: int = 4
    interrupt_depth: int = 4
    capsule_quota_bytes: int = 256 * 1024 * 1024
    capsule_host_quota_bytes: int = 1024 * 1024 * 1024
    capsule_disk_quota_bytes: int = 16 * 1024 * 1024 * 1024
    capsule_folder: str = ""
    move_slice_bytes: int = 1 << 20
    host: str = ""
    slack_reserve_us: int = 500
    slack_floor_ms: float = 500.0
    num_threads: int = 1
    socket_group: str = ""

    def __post_init__(self) -> None:
        check_device(self.device)
        check_ranges(self, RANGES, "planner engine")
        if self.chunk_length % 64:
            raise ConfigError(
                "planner engine parameter 'chunk_length' is out of range",
                expected="a multiple of 64",
                found=self.chunk_length,
            )
        if self.numbers not in ("", CHECKED, FREE):
            raise ConfigError(
                "planner engine parameter 'numbers' is unknown",
                expected=f"'{CHECKED}', '{FREE}' or \"\"",
                found=repr(self.numbers),
            )
        self.grammar()
        parse_prefixes(self.prefixes)
        parse_synonyms(self.synonyms)
        parse_scorers(self.scorers)

    def grammar(self) -> PlanGrammar:
        """Return what a plan may be."""
        return PlanGrammar(
            low=self.subgoal_low,
            high=self.subgoal_high,
            decimals=self.subgoal_decimals,
            may_be_empty=self.may_refuse,
        )

    def storage(self) -> EngineConfig:
        """Return what decides where capsules are kept, as any engine is told."""
        return EngineConfig(
            name=self.name,
            num_environments=self.num_environments,
            num_branch_lanes=self.num_environments,  # a turn is kept before an old one goes
            rollback_depth=self.rollback_depth,
            interrupt_depth=self.interrupt_depth,
            capsule_quota_bytes=self.capsule_quota_bytes,
            capsule_host_quota_bytes=self.capsule_host_quota_bytes,
            capsule_disk_quota_bytes=self.capsule_disk_quota_bytes,
            capsule_folder=self.capsule_folder,
            num_threads=self.num_threads,
        )


@dataclass(frozen=True, slots=True)
class PrefixText:
    """A part of what every text begins with.

    Attributes:
        name: Unique among the parts.
        text: Not empty.
    """

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Habits:
    """What holds for a model where the configuration says nothing.

    Attributes:
        prefixes: What every text begins with.
        synonyms: Other words for instructions, by their bare words.
        checks_numbers: Whether points and lengths that an instruction spells out are judged.
    """

    prefixes: tuple[PrefixText, ...] = ()
    synonyms: Mapping[str, str] = field(default_factory=dict)
    checks_numbers: bool = False

    def under(self, config: PlannerConfig) -> Habits:
        """Return what holds once a configuration was heard."""
        return Habits(
            prefixes=parse_prefixes(config.prefixes) or self.prefixes,
            synonyms=parse_synonyms(config.synonyms) or self.synonyms,
            checks_numbers=config.numbers == CHECKED if config.numbers else self.checks_numbers,
        )


NO_HABITS = Habits()
"""Of a model that nothing is known of."""


def parse_prefixes(entries: Sequence[str]) -> tuple[PrefixText, ...]:
    """Read prefixes, ``name = text`` each; blanks around the text don't count.

    Raises:
        ConfigError: An entry has another form, or a name comes twice.
    """
    return tuple(PrefixText(name, text) for name, text in _pairs("prefixes", entries))


def parse_scorers(entries: Sequence[str]) -> dict[str, str]:
    """Read scorers, ``name = module:function`` each.

    Raises:
        ConfigError: An entry has another form, or a name comes twice.
    """
    scorers = dict(_pairs("scorers", entries))
    for name, target in scorers.items():
        module, colon, function = target.partition(":")
        if not (module and colon and function):
            raise ConfigError(
                f"scorer '{name}' names no function", expected="module:function", found=target
            )
    return scorers


def parse_synonyms(entries: Sequence[str]) -> dict[str, str]:
    """Read synonyms, ``said = meant`` each.

    Returns:
        What is meant, by the bare words of what is said.

    Raises:
        ConfigError: An entry has another form, or the same words come twice.
    """
    synonyms: dict[str, str] = {}
    for entry in entries:
        said, sign, meant = (part.strip() for part in entry.partition("="))
        words = bare_words(said)
        if not (sign and words and meant) or words in synonyms:
            raise ConfigError(
                "an entry of parameter 'synonyms' can't be read",
                expected="'said = meant', each said once",
                found=repr(entry[:80]),
            )
        synonyms[words] = " ".join(meant.split())
    return synonyms


def _pairs(parameter: str, entries: Sequence[str]) -> list[tuple[str, str]]:
    pairs: dict[str, str] = {}
    for entry in entries:
        name, sign, text = (part.strip() for part in entry.partition("="))
        if not (sign and text and _NAME.fullmatch(name)):
            raise ConfigError(
                f"an entry of parameter '{parameter}' can't be read",
                expected="'name = ...', the name of letters, digits, _ and -",
                found=repr(entry[:80]),
            )
        if name in pairs:
            raise ConfigError(f"parameter '{parameter}' names '{name}' twice")
        pairs[name] = text
    return list(pairs.items())
