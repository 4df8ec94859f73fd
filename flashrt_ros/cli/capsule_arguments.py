"""What ``flashrt-ros capsule`` takes on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from flashrt_ros.capsule.tiers import TIERS
from flashrt_ros.cli.capsule_text import age_ns, moment_ns, seconds, whole, word
from flashrt_ros.cli.files import target
from flashrt_ros.engine.config import EngineConfig


def declare(parser: argparse.ArgumentParser, summaries: Mapping[str, str]) -> None:
    """Declare the verbs, each with its line of help, and their options.

    Args:
        parser: Gets a subparser for each verb.
        summaries: What each verb does, by its name.
    """
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--engine",
        default=EngineConfig().name,
        help="engine's name, with its namespace (default %(default)s)",
    )
    common.add_argument("--env", type=whole, default=0, metavar="N", help="environment (default 0)")
    common.add_argument("--json", action="store_true", help="print JSON")
    common.add_argument(
        "--timeout",
        type=seconds,
        default=10.0,
        metavar="S",
        help="longest wait for an answer, s (default 10)",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    added: dict[str, argparse.ArgumentParser] = {}
    for name, summary in summaries.items():
        added[name] = verbs.add_parser(name, help=summary, description=summary, parents=[common])
        added[name].register("type", None, word)  # of whatever is given no other
    _add_making(added)
    _add_moving(added)
    _add_keeping(added)
    _add_finding(added)
    _add_files(added)


def _add_making(added: Mapping[str, argparse.ArgumentParser]) -> None:
    snapshot = added["snapshot"]
    snapshot.add_argument("name", nargs="?", default="", help="left out, it stays nameless")
    snapshot.add_argument(
        "--label", action="append", default=[], metavar="KEY=VALUE", help="to search by"
    )
    snapshot.add_argument("--pin", action="store_true", help="keep it from being dropped")
    snapshot.add_argument("--persist", action="store_true", help="have a restarted engine find it")
    snapshot.add_argument("--replace", action="store_true", help="take the name if it is taken")
    snapshot.add_argument(
        "--align-down", action="store_true", help="take the nearest legal border before"
    )
    fork = added["fork"]
    fork.add_argument("count", type=whole, help="branches")
    fork.add_argument("--capsule", default="", help="id or name; left out, the last boundary")
    fork.add_argument(
        "--seed", type=whole, action="append", default=[], help="one for each branch, or none"
    )


def _add_moving(added: Mapping[str, argparse.ArgumentParser]) -> None:
    added["restore"].add_argument("capsule", help="id or name")
    added["reset"].add_argument("capsule", nargs="?", default="home", help="default home")
    for name in ("restore", "reset"):
        verb = added[name]
        verb.add_argument("--keep-goal", action="store_true", help="keep the goal in force")
        verb.add_argument("--seed", type=whole, help="draw noise from this seed on")
    added["reset"].add_argument(
        "--stamp-ns",
        type=whole,
        default=0,
        metavar="NS",
        help="nothing stamped before this acts any more, on the clock of the node that writes",
    )
    rollback = added["rollback"]
    rollback.add_argument(
        "boundaries", type=whole, nargs="?", default=1, help="how many (default 1)"
    )
    rollback.add_argument("--to", default="", metavar="CAPSULE", help="an ancestor instead")
    select = added["select"]
    select.add_argument("branch", type=whole, help="as fork gave it")
    select.add_argument("--keep-others", action="store_true", help="keep the other branches")


def _add_keeping(added: Mapping[str, argparse.ArgumentParser]) -> None:
    drop = added["drop"]
    drop.add_argument("capsules", nargs="+", metavar="capsule", help="id or name")
    drop.add_argument("--dry-run", action="store_true", help="say what would be dropped")
    added["pin"].add_argument("capsule", help="id or name")
    added["pin"].add_argument("--off", action="store_true", help="unpin it")
    gc = added["gc"]
    gc.add_argument(
        "--older-than",
        type=age_ns,
        default=0,
        metavar="AGE",
        help="only older ones: 90s, 15m, 2h, 7d or 1w",
    )
    gc.add_argument("--label", default="", metavar="KEY=VALUE", help="only those with this label")
    gc.add_argument("--prefix", default="", help="only those whose name starts so")
    gc.add_argument("--unpinned", action="store_true", help="every one; pinned ones never go")
    gc.add_argument(
        "--keep-last", type=whole, default=0, metavar="N", help="but for the N newest of them"
    )
    certainty = gc.add_mutually_exclusive_group()
    certainty.add_argument("--dry-run", action="store_true", help="only show them: the default")
    certainty.add_argument("--yes", action="store_true", help="drop them")


def _add_finding(added: Mapping[str, argparse.ArgumentParser]) -> None:
    for name in ("list", "tree"):
        verb = added[name]
        verb.add_argument(
            "--label",
            default="",
            metavar="KEY=VALUE",
            help="only those with this label",
        )
        verb.add_argument("--prefix", default="", help="only those whose name starts so")
        for bound, side in (("since", "later"), ("until", "earlier")):
            verb.add_argument(
                f"--{bound}",
                type=moment_ns,
                default=0,
                metavar="TIME",
                help=f"only those made then or {side}: ISO 8601, or an age like 2h",
            )
        verb.add_argument("--tier", default="", choices=TIERS, help="only those in this tier")
        pins = verb.add_mutually_exclusive_group()
        pins.add_argument("--pinned", action="store_true", default=None, help="only pinned ones")
        pins.add_argument("--unpinned", dest="pinned", action="store_false", help="only others")
    tree = added["tree"]
    tree.add_argument("--svg", type=target, metavar="FILE", help="also draw it into this file")
    tree.add_argument("--html", type=target, metavar="FILE", help="also make a page of it")


def _add_files(added: Mapping[str, argparse.ArgumentParser]) -> None:
    added["save"].add_argument("capsule", help="id or name")
    added["save"].add_argument(
        "file",
        nargs="?",
        default="",
        help="name in the engine's folder; default the capsule's",
    )
    added["load"].add_argument("file", help="name in the engine's folder")
    added["export"].add_argument("capsule", help="id or name")
    for name in ("export", "import"):
        added[name].add_argument("path", type=Path, help="the file, anywhere")
    added["import"].add_argument("--file", default="", help="its name in the engine's folder")
    for name in ("load", "import"):
        added[name].add_argument(
            "--name", default="", help="of the capsule; default the one it was saved under"
        )
        added[name].add_argument("--pin", action="store_true", help="keep it from being dropped")
    for name in ("save", "load", "export", "import"):
        added[name].add_argument(
            "--replace", action="store_true", help="take the place of what is there"
        )
    explain = added["explain"]
    explain.add_argument("first", metavar="A", help="a capsule file, or a capsule's id or name")
    explain.add_argument(
        "second", nargs="?", default="", metavar="B", help="likewise; default the engine itself"
    )
