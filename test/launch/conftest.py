"""The processes and the peer of the nodes' tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_path = Path(__file__).parents[1] / "nodes" / "conftest.py"
_spec = importlib.util.spec_from_file_location("flashrt_ros_test_nodes", _path)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

fresh_bench = _module.fresh_bench
fresh_peer = _module.fresh_peer
