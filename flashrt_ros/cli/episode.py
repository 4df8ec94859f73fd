"""``flashrt-ros episode``: one id over a policy's and a planner's engine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from flashrt_ros.cli import refusals, signals
from flashrt_ros.cli.capsule_text import seconds, whole, word
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.episode.client import EpisodeClient
from flashrt_ros.episode.manifest import Manifest
from flashrt_ros.errors import FlashrtError, UnsupportedError

Verb = Callable[[EpisodeClient, argparse.Namespace], tuple[Manifest, ...]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs and their options."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--engine",
        default=EngineConfig().name,
        help="the policy's engine, with its namespace (default %(default)s)",
    )
    common.add_argument(
        "--planner",
        default="",
        metavar="NAME",
        help="planner engine, where one takes part",
    )
    common.add_argument("--env", type=whole, default=0, metavar="N", help="environment (default 0)")
    common.add_argument(
        "--rate-hz",
        type=float,
        metavar="HZ",
        help="rate to go on at where a timer ticks it",
    )
    common.add_argument("--json", action="store_true", help="print JSON")
    common.add_argument(
        "--timeout",
        type=seconds,
        default=10.0,
        metavar="S",
        help="longest wait for an answer, s (default 10)",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (_, summary) in VERBS.items():
        verb = verbs.add_parser(name, help=summary, description=summary, parents=[common])
        verb.register("type", None, word)  # of whatever is given no other
        if name != "list":
            verb.add_argument("name", help="of the episode")
        if name == "snapshot":
            verb.add_argument("--replace", action="store_true", help="take the name over")
            verb.add_argument(
                "--persist", action="store_true", help="have a restarted engine find its capsules"
            )


def run(arguments: argparse.Namespace) -> int:
    """Carry a verb out and print what it gave; a signal that comes meanwhile waits for its end.

    Returns:
        0; 1 if the verb was refused; 3 if there was no engine to ask.
    """
    verb, _ = VERBS[arguments.verb]
    try:
        # Who is stopped in the middle would leave the policy standing still.
        with signals.deferred(), ExitStack() as stack:
            policy = stack.enter_context(_connect(arguments.engine, arguments))
            if not policy.status(env_index=arguments.env).capsule_folder:
                raise UnsupportedError(
                    "the engine has no folder, so that an episode would end with the command",
                    fix="set the engine parameter 'capsule_folder'",
                )
            planner = None
            if arguments.planner:
                planner = stack.enter_context(_connect(arguments.planner, arguments))
            episodes = EpisodeClient(
                policy, planner=planner, env_index=arguments.env, rate_hz=arguments.rate_hz
            )
            _print(verb(stack.enter_context(episodes), arguments), arguments)
    except FlashrtError as error:
        return refusals.tell(error, as_json=arguments.json)
    return 0


def _connect(name: str, arguments: argparse.Namespace) -> EngineClient:
    # an engine that is not there now is an answer, not something to wait for
    return EngineClient(name, client="flashrt-ros episode", timeout_s=arguments.timeout, wait_s=0.0)


def _print(manifests: tuple[Manifest, ...], arguments: argparse.Namespace) -> None:
    if arguments.json:
        shown = [msgspec.to_builtins(one) for one in manifests]  # a state as base64
        print(msgspec.json.encode({"episodes": shown}).decode())
    elif arguments.verb == "list" and not manifests:
        print("no episodes")
    else:
        for one in manifests:
            print(_line(one))


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
    def say(name: str, error: FlashrtError) -> None:
        print(f"flashrt-ros: episode '{name}': {error.name}: {error}", file=sys.stderr)

    return episodes.episodes(say)


def _drop(episodes: EpisodeClient, arguments: argparse.Namespace) -> tuple[Manifest, ...]:
    for part in episodes.drop(arguments.name):
        engine = part.facts.get("engine", "its engine")
        print(
            f"flashrt-ros: capsule {part.capsule_id} of '{part.name}' stays pinned in {engine}: "
            f"flashrt-ros capsule pin --off {part.capsule_id} --engine {engine}, and drop it",
            file=sys.stderr,
        )
    return ()


VERBS: dict[str, tuple[Verb, str]] = {
    "snapshot": (_snapshot, "take policy and planner at one boundary, all or none"),
    "restore": (_restore, "bring policy and planner back to it, all or none"),
    "list": (_list, "show the episodes of an engine with a capsule folder"),
    "drop": (_drop, "forget an episode and its capsules"),
}
"""Each verb with what it does."""
