"""Episodes on disks that are full or read-only: the one of before is whole, and is read."""

from __future__ import annotations

from pathlib import Path

from test.capsule.archive.test_disk import mount_point, run_mounted

__all__ = ["mount_point"]

HEAD = """
from flashrt_ros.episode.catalog import SUFFIX, FolderCatalog
from flashrt_ros.episode.manifest import Manifest, Part

def manifest(num_bytes, created_ns=0):
    return Manifest("one", created_ns, 0, (Part("sim", "k", state=bytes(num_bytes)),))

path = Path(sys.argv[1]) / "episodes"
catalog = FolderCatalog(path)
catalog.write(manifest(10), replace=False)

def report(**more):
    with FolderCatalog(path) as again:
        whole = again.read("one") == manifest(10) == again.manifests()[0]
    print(json.dumps({"whole": whole, "names": sorted(os.listdir(path)), **more}))
"""


def test_a_full_disk_keeps_the_episode_of_before(mount_point: Path) -> None:
    told = run_mounted(
        mount_point,
        "size=1m",
        HEAD + "report(write=refused(lambda: catalog.write(manifest(1 << 21), replace=True)))",
    )
    assert told["write"]["name"] == "CAPSULE_DISK_FULL"
    assert "bytes free" in told["write"]["message"]
    assert told["names"] == [".lock", "one.episode"]
    assert told["whole"]


def test_a_read_only_folder_is_read_and_not_written(mount_point: Path) -> None:
    told = run_mounted(
        mount_point,
        "size=1m",
        HEAD
        + """
import subprocess
subprocess.run(["mount", "-o", "remount,ro", sys.argv[1]], check=True)
report(
    write=refused(lambda: catalog.write(manifest(10), replace=True)),
    remove=refused(lambda: catalog.remove("one")),
)
""",
    )
    assert told["whole"]
    for verb in ("write", "remove"):
        assert told[verb]["name"] == "CAPSULE_FOLDER", verb
        assert "Read-only" in told[verb]["message"], verb
