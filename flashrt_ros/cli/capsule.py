"""``flashrt-ros capsule``: the capsule verbs, at a running engine."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from flashrt_ros.cli import capsule_files, refusals
from flashrt_ros.cli.capsule_arguments import declare
from flashrt_ros.cli.capsule_page import Drawing
from flashrt_ros.cli.capsule_views import Answer, capsule_table, facts, lineage
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.protocol import CapsuleInfo, Moved
from flashrt_ros.errors import (
    CapsuleFolderError,
    CapsuleNotFoundError,
    CapsulePinnedError,
    FlashrtError,
)

Verb = Callable[[EngineClient, argparse.Namespace], Answer]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs and their options."""
    declare(parser, {name: summary for name, (_, summary) in VERBS.items()})


def run(arguments: argparse.Namespace) -> int:
    """Ask the engine, print the answer.

    Returns:
        0; 1 if the engine refused, with the error's name and code printed; 3 if there
        was no engine to ask.
    """
    try:
        if arguments.verb == "explain":
            offline = capsule_files.explain_files(arguments)
            if offline is not None:
                offline.print(as_json=arguments.json)
                return 0
        # an engine that is not there now is an answer, not something to wait for
        with EngineClient(
            arguments.engine,
            client="flashrt-ros capsule",
            timeout_s=arguments.timeout,
            wait_s=0.0,
        ) as client:
            answer = VERBS[arguments.verb][0](client, arguments)
    except FlashrtError as error:
        return refusals.tell(error, as_json=arguments.json)
    answer.print(as_json=arguments.json)
    return 0


# verbs ---------------------------------------------------------------------------------------


def _snapshot(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    reply = client.snapshot(
        arguments.name,
        env_index=arguments.env,
        labels=tuple(arguments.label),
        pinned=arguments.pin,
        replace=arguments.replace,
        align_down=arguments.align_down,
        persist=arguments.persist,
    )
    plain = {"capsule": _plain(reply.capsule), "tail_length": reply.tail_length}
    return Answer(plain, capsule_table([reply.capsule]))


def _restore(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    return _moved(
        client.restore(
            arguments.capsule,
            env_index=arguments.env,
            keep_goal=arguments.keep_goal,
            seed=arguments.seed,
        )
    )


def _reset(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    return _moved(
        client.reset(
            env_index=arguments.env,
            capsule=arguments.capsule,
            keep_goal=arguments.keep_goal,
            seed=arguments.seed,
            stamp_ns=arguments.stamp_ns,
        )
    )


def _fork(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    reply = client.fork(
        arguments.count,
        env_index=arguments.env,
        capsule=arguments.capsule,
        seeds=tuple(arguments.seed),
    )
    plain = {
        "capsule_id": reply.capsule_id,
        "branches": list(reply.branches),
        "seeds": list(reply.seeds),
    }
    pairs = zip(reply.branches, reply.seeds, strict=True)
    rows = {f"branch {branch}": f"seed {seed}" for branch, seed in pairs}
    return Answer(plain, facts({"from": reply.capsule_id, **rows}))


def _select(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    return _moved(
        client.select(
            arguments.branch,
            env_index=arguments.env,
            release_others=not arguments.keep_others,
        )
    )


def _rollback(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    return _moved(
        client.rollback(
            env_index=arguments.env, boundaries=arguments.boundaries, capsule=arguments.to
        )
    )


def _list(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    capsules = list(client.capsules(**_filters(arguments)))
    return Answer({"capsules": [_plain(one) for one in capsules]}, capsule_table(capsules))


def _tree(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    capsules = list(client.capsules(**_filters(arguments)))
    timelines = client.list_capsules(limit=1, env_index=arguments.env).timelines
    title = f"{arguments.engine}: {client.model.name}"
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    drawing = Drawing(
        title, capsules, timelines, client.status(env_index=arguments.env).tiers, made
    )
    for path, draw in ((arguments.svg, drawing.svg), (arguments.html, drawing.html)):
        if path is not None:
            _write(path, draw())
    plain = {
        "capsules": [_plain(one) for one in capsules],
        "timelines": [_plain(one) for one in timelines],
    }
    return Answer(plain, lineage(capsules, title=title, timelines=timelines))


def _filters(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "label": arguments.label,
        "name_prefix": arguments.prefix,
        "since_ns": arguments.since,
        "until_ns": arguments.until,
        "tier": arguments.tier,
        "pinned": arguments.pinned,
        "env_index": arguments.env,
    }


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CapsuleFolderError(f"{path} can't be written", found=error.strerror) from error


def _drop(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    known = list(client.capsules(env_index=arguments.env))
    doomed = [_find(key, known) for key in dict.fromkeys(arguments.capsules)]
    # before the first is dropped, so that all or none are
    for capsule in doomed:
        _check_free(capsule)
    if not arguments.dry_run:
        for capsule in doomed:
            client.drop(capsule.id, env_index=arguments.env)
    plain = {"dropped": [_plain(one) for one in doomed], "dry_run": arguments.dry_run}
    title = "would be dropped" if arguments.dry_run else "dropped"
    return Answer(plain, capsule_table(doomed, title=title))


def _find(key: str, known: list[CapsuleInfo]) -> CapsuleInfo:
    by_id = {one.id: one for one in known}
    by_name = {one.name: one for one in known if one.name}
    found = by_name.get(key) or by_id.get(key)
    if found is None:
        names = ", ".join(sorted(by_name))
        raise CapsuleNotFoundError(
            f"no capsule has the id or name '{key}'",
            expected=f"an id, or one of {names}" if names else "an id; none has a name yet",
        )
    return found


def _check_free(capsule: CapsuleInfo) -> None:
    if capsule.pinned or capsule.is_automatic:
        raise CapsulePinnedError(
            f"capsule '{capsule.name or capsule.id}' can't be dropped",
            found="pinned" if capsule.pinned else "the engine's own",
            fix="unpin it with 'pin --off'; a home is replaced by a snapshot of its name"
            if capsule.pinned
            else "the engine drops it by itself",
        )


def _pin(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    reply = client.pin(arguments.capsule, pinned=not arguments.off, env_index=arguments.env)
    return Answer({"capsule": _plain(reply.capsule)}, capsule_table([reply.capsule]))


VERBS: dict[str, tuple[Verb, str]] = {
    "snapshot": (_snapshot, "freeze the last boundary"),
    "restore": (_restore, "bring a capsule back"),
    "reset": (_reset, "begin an episode: restore home, drop goals and observations"),
    "fork": (_fork, "fill branches from a capsule, all or none"),
    "select": (_select, "make a branch's state the environment's"),
    "rollback": (_rollback, "go back by boundaries, or to an ancestor"),
    "list": (_list, "show every capsule"),
    "tree": (_tree, "draw which capsule came from which"),
    "drop": (_drop, "forget capsules; their children stay"),
    "pin": (_pin, "keep a capsule from being dropped"),
    "save": (capsule_files.save, "write a capsule into the engine's folder"),
    "load": (capsule_files.load, "read a file of the engine's folder"),
    "export": (capsule_files.export, "write a capsule into one file anywhere"),
    "import": (capsule_files.import_, "bring such a file into the engine"),
    "explain": (capsule_files.explain, "say what keeps a capsule from fitting"),
    "gc": (capsule_files.collect, "drop capsules by rules; shows them unless told --yes"),
}
"""What may be asked, with its line in ``--help``."""


def _moved(moved: Moved) -> Answer:
    plain = _plain(moved)
    del plain["rid"]
    shown = {
        "capsule": moved.capsule_id,
        "tick": moved.tick,
        "generation": moved.generation,
        "path": moved.path,
        "took": f"{moved.duration_ns / 1000:.0f} µs",
        "interrupts stacked": moved.depth,
    }
    return Answer(plain, facts({name: str(value) for name, value in shown.items() if value != ""}))


def _plain(record: msgspec.Struct) -> dict[str, Any]:
    """Return a record's fields by name; on the wire it is an array."""
    return msgspec.structs.asdict(record)
