"""An engine in a thread of its node's process: what the engine's own process is compared with.

python -m flashrt_ros.bench.threaded_node CONFIG FACTORY SWITCH_US ROS_ARGUMENTS...
"""

from __future__ import annotations

import gc
import sys
import threading

from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.engine import Engine
from flashrt_ros.engine.leaving import leave
from flashrt_ros.engine.members import load_model, read_config
from flashrt_ros.engine.server import EngineServer
from flashrt_ros.nodes import policy_node
from flashrt_ros.nodes.process import run_node

_JOIN_S = 2.0


class EngineThread:
    """Builds and serves an engine, all in one thread.

    Args:
        file: Of the engine's configuration.
        factory: Of its model, as for ``--model-factory``.
    """

    def __init__(self, file: str, factory: str) -> None:
        self._config = read_config(file)
        self._factory = factory
        self._server: EngineServer | None = None
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and join the thread. Idempotent."""
        if self._server is not None:
            self._server.stop()
        self._thread.join(_JOIN_S)

    def _serve(self) -> None:
        config = self._config
        with (
            EngineSocket(config.name) as address,
            Engine(load_model(config, self._factory), config) as engine,
            EngineServer(
                engine,
                address,
                poll_reserve_us=config.poll_reserve_us,
                busy_poll_us=config.busy_poll_us,
                wake_early_us=config.wake_early_us,
            ) as server,
        ):
            self._server = server
            # As an engine's own process does, but for the switch interval, which is the node's too:
            # what is compared is the thread, and no setting.
            gc.collect()
            gc.freeze()
            server.run()


def main(arguments: list[str]) -> int:
    """Run both until a signal comes; returns the node's exit code."""
    file, factory, switch_us, *rest = arguments
    if int(switch_us):
        sys.setswitchinterval(int(switch_us) / 1e6)
    engine = EngineThread(file, factory)
    try:
        return run_node(policy_node.PolicyNode, ["threaded_node", *rest])
    finally:
        engine.close()


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
