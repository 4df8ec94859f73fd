from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.episode.catalog import SUFFIX, FolderCatalog, MemoryCatalog, open_catalog
from flashrt_ros.episode.manifest import (
    MAX_FILE_BYTES,
    MAX_STATE_BYTES,
    Manifest,
    Part,
    check_parts,
    decode_manifest,
    encode_manifest,
)
from flashrt_ros.errors import (
    CapsuleArchiveError,
    CapsuleFolderError,
    CapsuleNameError,
    CapsuleNameTakenError,
    CapsuleNotFoundError,
    CapsuleVersionError,
    FlashrtError,
)


def manifest(name: str = "one", **changes: object) -> Manifest:
    parts = (Part("sim", "my-sim/1", state=b"\x00\xff"), Part("policy", "policy", "c0ffee", "f"))
    return msgspec.structs.replace(Manifest(name, 5, 0, parts, ("planner",)), **changes)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    with FolderCatalog(tmp_path / "episodes") as catalog:
        catalog.write(manifest(), replace=False)
        catalog.write(manifest("two"), replace=False)
    with FolderCatalog(tmp_path / "episodes") as catalog:
        assert catalog.read("one") == manifest()
        assert [one.name for one in catalog.manifests()] == ["one", "two"]
        catalog.remove("one")
        assert not catalog.has("one")
        for verb in (catalog.read, catalog.remove):
            with pytest.raises(CapsuleNotFoundError, match="no episode 'one': expected one of two"):
                verb("one")


def test_folder_and_files_are_the_users_alone(tmp_path: Path) -> None:
    with FolderCatalog(tmp_path / "episodes") as catalog:
        catalog.write(manifest(), replace=False)
    assert stat.S_IMODE((tmp_path / "episodes").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "episodes" / f"one{SUFFIX}").stat().st_mode) == 0o600


def test_a_folder_that_others_reach_into_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(CapsuleFolderError, match="0700"):
        FolderCatalog(tmp_path / "open")


def test_a_name_is_replaced_only_when_asked_to(tmp_path: Path) -> None:
    with FolderCatalog(tmp_path / "episodes") as catalog:
        catalog.write(manifest(), replace=False)
        with pytest.raises(CapsuleNameTakenError):
            catalog.write(manifest(created_ns=6), replace=False)
        assert catalog.read("one").created_ns == 5
        catalog.write(manifest(created_ns=6), replace=True)
        assert catalog.read("one").created_ns == 6
        names = sorted(path.name for path in (tmp_path / "episodes").iterdir())
        assert names == [".lock", f"one{SUFFIX}"]


@pytest.mark.parametrize("name", ["../one", "a/b", "", ".one"])
def test_names_are_names_and_never_paths(tmp_path: Path, name: str) -> None:
    with FolderCatalog(tmp_path / "episodes") as catalog:
        for verb in (catalog.read, catalog.remove, catalog.has):
            with pytest.raises(CapsuleNameError):
                verb(name)


def test_no_link_is_followed(tmp_path: Path) -> None:
    with FolderCatalog(tmp_path / "episodes") as catalog:
        outside = tmp_path / "outside"
        outside.write_bytes(encode_manifest(manifest()))
        (tmp_path / "episodes" / f"one{SUFFIX}").symlink_to(outside)
        with pytest.raises(FlashrtError, match="can't be read"):
            catalog.read("one")


def body(change: Callable[[dict[str, object]], None]) -> bytes:
    """A file with a fitting digest whose content was changed."""
    import xxhash

    plain = msgspec.to_builtins(manifest(), builtin_types=(bytes,))
    change(plain)
    data = msgspec.msgpack.encode(plain)
    return b"FRTEPIS\x01" + xxhash.xxh3_128_digest(data) + data


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", CapsuleArchiveError),
        (b"\x80\x04K*." * 9, CapsuleArchiveError),
        (encode_manifest(manifest())[:-1], CapsuleArchiveError),
        (encode_manifest(manifest()) + b"\x00", CapsuleArchiveError),
        (b"FRTEPIS\x02" + encode_manifest(manifest())[8:], CapsuleVersionError),
        (body(lambda plain: plain.update(parts=[])), CapsuleArchiveError),
        (body(lambda plain: plain.update(more=1)), CapsuleArchiveError),
        (body(lambda plain: plain.update(env_index="0")), CapsuleArchiveError),
        (body(lambda plain: plain.update(name="../one")), CapsuleNameError),
        (body(lambda plain: plain.update(name="two")), CapsuleArchiveError),
        (body(lambda plain: plain.update(created_ns=-1)), CapsuleArchiveError),
        (body(lambda plain: plain.update(created_ns=2**63)), CapsuleArchiveError),
        (body(lambda plain: plain.update(env_index=2**32)), CapsuleArchiveError),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused_and_the_rest_is_there(
    tmp_path: Path, data: bytes, error: type[FlashrtError]
) -> None:
    with FolderCatalog(tmp_path / "episodes") as catalog:
        catalog.write(manifest("other"), replace=False)
        (tmp_path / "episodes" / f"one{SUFFIX}").write_bytes(data)
        with pytest.raises(error):
            catalog.read("one")
        damaged: list[str] = []

        def note(name: str, error: FlashrtError) -> None:
            damaged.append(name)

        assert [one.name for one in catalog.manifests(note)] == ["other"]
        assert damaged == ["one"]
        catalog.remove("one")


def test_what_takes_a_name_over_is_told_what_had_it(tmp_path: Path) -> None:
    """In the same instant: what another coordinator wrote meanwhile is not forgotten."""
    with (
        FolderCatalog(tmp_path / "episodes") as mine,
        FolderCatalog(tmp_path / "episodes") as theirs,
        MemoryCatalog() as memory,
    ):
        assert mine.write(manifest(), replace=False) is None
        assert theirs.write(manifest(created_ns=6), replace=True) == manifest()
        assert mine.write(manifest(created_ns=7), replace=True) == manifest(created_ns=6)
        assert theirs.remove("one") == manifest(created_ns=7)
        (tmp_path / "episodes" / f"one{SUFFIX}").write_bytes(b"damaged")
        assert mine.write(manifest(), replace=True) is None
        (tmp_path / "episodes" / f"one{SUFFIX}").write_bytes(b"damaged")
        assert mine.remove("one") is None
        assert memory.write(manifest(), replace=True) is None
        assert memory.write(manifest(created_ns=6), replace=True) == manifest()
        assert memory.remove("one") == manifest(created_ns=6)


@pytest.mark.parametrize(
    "changes",
    [
        {"created_ns": -1},
        {"parts": ()},
        {"parts": (Part("sim", "k", facts={"log": "x" * MAX_FILE_BYTES}),)},
        {"parts": (Part("sim", "k", facts={"log": "\udcff"}),)},
    ],
)
def test_what_could_not_be_read_is_not_kept(tmp_path: Path, changes: dict[str, Any]) -> None:
    with FolderCatalog(tmp_path / "episodes") as catalog:
        catalog.write(manifest(), replace=False)
        with pytest.raises(CapsuleArchiveError):
            catalog.write(manifest(**changes), replace=True)
        assert catalog.read("one") == manifest()


def test_what_is_no_file_is_no_episode(tmp_path: Path) -> None:
    episodes = tmp_path / "episodes"
    with FolderCatalog(episodes) as catalog:
        catalog.write(manifest("other"), replace=False)
        (episodes / f"folder{SUFFIX}").mkdir()
        os.mkfifo(episodes / f"pipe{SUFFIX}")
        with (episodes / f"vast{SUFFIX}").open("wb") as file:
            file.truncate(1 << 32)
        (episodes / os.fsdecode(b"\xff" + SUFFIX.encode())).touch()
        damaged: list[str] = []

        def note(name: str, error: FlashrtError) -> None:
            damaged.append(name)

        num_open = len(list(Path("/proc/self/fd").iterdir()))
        assert [one.name for one in catalog.manifests(note)] == ["other"]
        assert damaged == ["folder", "pipe", "vast", "\\xff"]
        with pytest.raises(CapsuleNotFoundError) as caught:
            catalog.read("none")
        assert str(caught.value).encode()
        assert len(list(Path("/proc/self/fd").iterdir())) == num_open


@given(st.data())
def test_a_changed_byte_is_found(data: st.DataObject) -> None:
    whole = bytearray(encode_manifest(manifest()))
    index = data.draw(st.integers(0, len(whole) - 1))
    whole[index] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FlashrtError):
        decode_manifest(bytes(whole))


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused_and_raise_nothing_else(data: bytes) -> None:
    with pytest.raises(FlashrtError):
        decode_manifest(data)


def test_states_have_a_limit() -> None:
    check_parts([Part("sim", "k", state=bytes(8))])
    with pytest.raises(CapsuleArchiveError, match="too large"):
        check_parts([Part("sim", "k", state=bytes(MAX_STATE_BYTES + 1))])
    with pytest.raises(CapsuleArchiveError, match="don't fit together"):
        check_parts([Part("sim", "k"), Part("sim", "k")])


def test_engines_that_share_a_folder_share_no_episodes(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with open_catalog(str(tmp_path), "one") as first, open_catalog(str(tmp_path), "two") as second:
        first.write(manifest(), replace=False)
        assert not second.has("one")
    with open_catalog("", "one") as memory:
        assert not memory.has("one")


def test_a_capsule_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    """Made here, others could reach into it, and its engine would refuse it."""
    with pytest.raises(CapsuleFolderError, match="can't be used"):
        open_catalog(str(tmp_path / "gone"), "one")
    assert not (tmp_path / "gone").exists()
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(CapsuleFolderError, match="0700"):
        open_catalog(str(tmp_path / "open"), "one")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(CapsuleFolderError, match="a link"):
        open_catalog(str(tmp_path / "link"), "one")
