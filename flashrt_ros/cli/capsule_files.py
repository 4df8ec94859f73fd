"""The verbs of ``flashrt-ros capsule`` that deal with files, fit and age."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from flashrt_ros.capsule.capsule import check_name
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.folder import CapsuleFolder
from flashrt_ros.capsule.transfer import export_capsule, import_capsule, inspect_file
from flashrt_ros.cli.capsule_text import size_text
from flashrt_ros.cli.capsule_views import Answer, capsule_table, comparison, facts
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.errors import UnsupportedError


def save(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    """Write a capsule into the engine's folder."""
    saved = client.save(
        arguments.capsule,
        env_index=arguments.env,
        file=arguments.file,
        replace=arguments.replace,
    )
    plain = msgspec.structs.asdict(saved)
    del plain["rid"]
    shown = {
        "file": saved.file,
        "size": size_text(saved.num_bytes),
        "digest": saved.digest,
        "took": f"{saved.duration_ns / 1e6:.1f} ms",
    }
    return Answer(plain, facts(shown))


def load(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    """Read a file of the engine's folder."""
    reply = client.load(
        arguments.file,
        env_index=arguments.env,
        name=arguments.name,
        pinned=arguments.pin,
        replace=arguments.replace,
    )
    plain = {"capsule": msgspec.structs.asdict(reply.capsule)}
    return Answer(plain, capsule_table([reply.capsule]))


def export(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    """Write a capsule of the engine into a file anywhere."""
    with _folder(client, arguments) as folder:
        file = f"export-{os.getpid()}-{time.monotonic_ns()}"
        client.save(arguments.capsule, env_index=arguments.env, file=file)
        try:
            record = export_capsule(folder, file, arguments.path, replace=arguments.replace)
        finally:
            folder.remove(file)
    plain = {
        "path": str(arguments.path),
        "id": record.id,
        "name": record.name,
        "num_bytes": record.file_bytes,
        "digest": record.digest,
    }
    shown = {**plain, "num_bytes": size_text(record.file_bytes)}
    return Answer(plain, facts({name: str(value) for name, value in shown.items()}))


def import_(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    """Copy a file from anywhere into the engine's folder, and load it; refused, it leaves none."""
    with _folder(client, arguments) as folder:
        record = inspect_file(arguments.path)
        stem = arguments.file or record.name or record.id
        check_name(stem)
        if not arguments.replace:
            folder.require_free(stem, record.id)
        # Under a name of its own first: what the engine refuses replaces nothing.
        trial = arguments.file = f"import-{os.getpid()}-{time.monotonic_ns()}"
        import_capsule(arguments.path, folder, file=trial)
        try:
            answer = load(client, arguments)
            import_capsule(arguments.path, folder, file=stem, replace=arguments.replace)
        finally:
            folder.remove(trial)
    return answer


def explain(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    """Say what differs between two fingerprints."""
    first = _fingerprint(client, arguments, arguments.first)
    second = _fingerprint(client, arguments, arguments.second)
    return _compared(arguments, first, second)


def explain_files(arguments: argparse.Namespace) -> Answer | None:
    """Say what differs between two files, without an engine; None where one is needed."""
    paths = Path(arguments.first), Path(arguments.second)
    if not arguments.second or not all(path.is_file() for path in paths):
        return None
    first, second = (inspect_file(path).fingerprint for path in paths)
    return _compared(arguments, first, second)


def collect(client: EngineClient, arguments: argparse.Namespace) -> Answer:
    """Drop what the rules admit, or show what would go."""
    gone = client.collect(
        older_than_ns=arguments.older_than,
        label=arguments.label,
        name_prefix=arguments.prefix,
        unpinned=arguments.unpinned,
        keep_last=arguments.keep_last,
        dry_run=not arguments.yes,
        env_index=arguments.env,
    )
    plain: dict[str, Any] = {
        "dropped": [msgspec.structs.asdict(one) for one in gone],
        "dry_run": not arguments.yes,
    }
    title = "dropped" if arguments.yes else "would be dropped; --yes drops them"
    return Answer(plain, capsule_table(gone, title=title))


def _compared(arguments: argparse.Namespace, first: Fingerprint, second: Fingerprint) -> Answer:
    rows = first.differences(second)
    names = arguments.first, arguments.second or "the engine"
    plain = {
        "fits": not rows,
        "first": dict(first.fields),
        "second": dict(second.fields),
        "differences": [
            {"field": name, "first": one, "second": other} for name, one, other in rows
        ],
    }
    return Answer(plain, comparison(rows, names))


def _fingerprint(client: EngineClient, arguments: argparse.Namespace, key: str) -> Fingerprint:
    """Find what a word means: a file that is there, else a capsule; "" is the engine."""
    if key and Path(key).is_file():
        return inspect_file(Path(key)).fingerprint
    found = client.fingerprint(key, env_index=arguments.env)
    return Fingerprint(found.fields, found.digest)


def _folder(client: EngineClient, arguments: argparse.Namespace) -> CapsuleFolder:
    path = client.status(env_index=arguments.env).capsule_folder
    if not path:
        raise UnsupportedError(
            "the engine has no folder for capsule files",
            fix="set the engine parameter 'capsule_folder'",
        )
    return CapsuleFolder(Path(path), create=False)
