"""``flashrt-ros episode``: one id over a policy's and a planner's engine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.episode.client import EpisodeClient
from flashrt_ros.episode.manifest import Manifest
from flashrt_ros.errors import EngineGoneError, FlashrtError, PeerRefusedError, ProtocolVersionError

REFUSED = 1
"""Exit code where the verb was refused; everything is as before."""

NO_ENGINE = 3
"""Exit code where an engine could not be asked: not there, not trusted, of another version."""

Verb = Callable[[EpisodeClient, argparse.Namespace], tuple[Manifest, ...]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs and their options."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--engine", default=EngineConfig().name, help="the policy's engine, with its namespace"
    )
    common.add_argument("--planner", default="", metavar="NAME", help="planner engine that goes on")
    common.add_argument("--env", type=int, default=0, metavar="N", help="environment (default 0)")
    common.add_argument(
        "--rate-hz", type=float, metavar="HZ", help="where a timer ticks the policy: its rate"
    )
    common.add_argument("--json", action="store_true", help="print JSON")
    common.add_argument(
        "--timeout", type=float, default=10.0, metavar="S", help="longest wait for an answer, s"
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (_, summary) in VERBS.items():
        verb = verbs.add_parser(name, help=summary, description=summary, parents=[common])
        if name != "list":
            verb.add_argument("name", help="of the episode")
        if name == "snapshot":
            verb.add_argument("--replace", action="store_true", help="take the name over")
            verb.add_argument(
                "--persist", action="store_true", help="have restarted engines find its capsules"
            )


def run(arguments: argparse.Namespace) -> int:
    """Carry a verb out; returns the exit code."""
    verb, _ = VERBS[arguments.verb]
    try:
        with ExitStack() as stack:

            def connect(name: str) -> EngineClient:
                client = EngineClient(name, client="episode", timeout_s=arguments.timeout)
                return stack.enter_context(client)

            episodes = EpisodeClient(
                connect(arguments.engine),
                planner=connect(arguments.planner) if arguments.planner else None,
                env_index=arguments.env,
                rate_hz=arguments.rate_hz,
            )
            manifests = verb(stack.enter_context(episodes), arguments)
    except FlashrtError as error:
        print(f"flashrt-ros: {error.name} ({error.code}): {error}", file=sys.stderr)
        is_away = isinstance(error, EngineGoneError | PeerRefusedError | ProtocolVersionError)
        return NO_ENGINE if is_away else REFUSED
    if arguments.json:
        shown = [msgspec.to_builtins(one) for one in manifests]  # a state as base64
        print(msgspec.json.encode({"episodes": shown}).decode())
    else:
        for one in manifests:
            print(_line(one))
    return 0


def _line(manifest: Manifest) -> str:
    tick = manifest.policy.facts.get("tick", "?")
    absent = f"  without {', '.join(manifest.absent)}" if manifest.absent else ""
    names = ", ".join(manifest.names)
    return f"{manifest.name}  tick {tick}  {names}  {manifest.num_bytes} bytes of state{absent}"


def _snapshot(episodes: EpisodeClient, arguments: argparse.Namespace) -> tuple[Manifest, ...]:
    made = episodes.snapshot(arguments.name, replace=arguments.replace, persist=arguments.persist)
    return (made,)


def _restore(episodes: EpisodeClient, arguments: argparse.Namespace) -> tuple[Manifest, ...]:
    return (episodes.restore(arguments.name),)


def _list(episodes: EpisodeClient, arguments: argparse.Namespace) -> tuple[Manifest, ...]:
    return episodes.episodes()


def _drop(episodes: EpisodeClient, arguments: argparse.Namespace) -> tuple[Manifest, ...]:
    episodes.drop(arguments.name)
    return ()


VERBS: dict[str, tuple[Verb, str]] = {
    "snapshot": (_snapshot, "take policy and planner at one boundary, all or none"),
    "restore": (_restore, "bring policy and planner back to it, all or none"),
    "list": (_list, "show the episodes of an engine with a capsule folder"),
    "drop": (_drop, "forget an episode and its capsules"),
}
"""Each verb with what it does."""
