"""Real processes, real DDS: engines, nodes, and a peer that waits for what it expects."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from builtin_interfaces.msg import Time
    from rclpy.publisher import Publisher

TIMEOUT_S = 60.0
"""Longest wait for anything; generous, because the machine may be busy."""

_POLITE_S = 2.0
"""How long a child that is no longer needed may take to end by itself."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """Leave no node behind in a ROS domain that the next test run may get."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """A child process whose output is kept, and whose lines can be waited for."""

    def __init__(self, argv: list[str], environment: dict[str, str]) -> None:
        self._condition = threading.Condition()
        self._lines: list[str] = []
        self._is_at_end = False
        self.process = subprocess.Popen(
            argv,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        with self._condition:
            return "\n".join(self._lines)

    def wait_for_line(self, text: str) -> None:
        with self._condition:
            found = self._condition.wait_for(
                lambda: self._is_at_end or any(text in line for line in self._lines), TIMEOUT_S
            )
        assert found, f"no line with {text!r} came in time:\n{self.output}"
        assert text in self.output, f"ended without a line with {text!r}:\n{self.output}"

    def trace_hears(self, *topics: str) -> bool:
        """Whether it is a trace that has had a message of each topic: their publishers know it."""
        return all(f"hears /{topic}" in self.output for topic in topics)

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return code

    def close(self) -> None:
        # A node that is killed may hold a lock in shared memory that its peers then wait for.
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.kill(self.process.pid, signal.SIGTERM)
            self.process.wait(_POLITE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._condition:
                self._lines.append(line.rstrip("\n"))
                self._condition.notify_all()
        with self._condition:
            self._is_at_end = True
            self._condition.notify_all()


class Bench:
    """Starts processes in a runtime folder of their own, and ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        runtime = folder / "runtime"
        runtime.mkdir(mode=0o700)
        self.environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(runtime),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._children: list[Child] = []
        self._count = 0

    def start(self, argv: list[str]) -> Child:
        child = Child(argv, self.environment)
        self._children.append(child)
        return child

    def engine(self, name: str = "engine", **config: object) -> Child:
        """Start an engine and wait until clients can connect."""
        file = self._file("json", json.dumps({"name": name, "model": "minimal", **config}))
        child = self.start([sys.executable, "-m", "flashrt_ros.engine", "--config", file])
        child.wait_for_line("ready")
        return child

    def node(self, module: str, *rules: str, section: str = "/**", **parameters: Any) -> Child:
        """Start a node; it is up once its services answer."""
        arguments = [word for rule in rules for word in ("-r", rule)]
        if parameters:
            values = {section: {"ros__parameters": parameters}}
            arguments += ["--params-file", self._file("yaml", yaml.safe_dump(values))]
        return self.start([sys.executable, "-m", module, "--ros-args", *arguments])

    def policy(self, *rules: str, section: str = "/**", **parameters: Any) -> Child:
        """Start a policy node fit for the model "minimal"."""
        given: dict[str, Any] = {
            "cameras": [""],
            "status_period_s": 0.1,
            "rate_hz": 50,
            **parameters,
        }
        return self.node("flashrt_ros.nodes.policy_node", *rules, section=section, **given)

    def planner(self, *rules: str, **parameters: Any) -> Child:
        given: dict[str, Any] = {"status_period_s": 0.1, **parameters}
        return self.node("flashrt_ros.nodes.planner_node", *rules, **given)

    def close(self) -> None:
        for child in reversed(self._children):
            child.close()
            if child.output:
                print(child.output)  # shown by pytest beside a failure

    def _file(self, suffix: str, text: str) -> str:
        self._count += 1
        path = self.folder / f"{self._count}.{suffix}"
        path.write_text(text)
        return str(path)


class Peer:
    """A node of the test's own, spun only while it waits for something."""

    def __init__(self) -> None:
        import rclpy
        from rclpy.context import Context
        from rclpy.executors import SingleThreadedExecutor
        from rclpy.node import Node

        self._context = Context()
        rclpy.init(context=self._context)
        self.node = Node("peer", context=self._context, enable_rosout=False)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._clients: dict[str, Any] = {}
        self.received: dict[str, list[Any]] = collections.defaultdict(list)

    def close(self) -> None:
        self._executor.shutdown()
        self.node.destroy_node()
        self._context.try_shutdown()

    def until(self, condition: Callable[[], object], what: str = "it") -> Any:
        """Spin until a condition holds; return what it returned."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{what} did not happen"
            self._executor.spin_once(timeout_sec=0.05)
        return found

    def spin_some(self) -> None:
        """Take what has arrived, without waiting."""
        for _ in range(20):
            self._executor.spin_once(timeout_sec=0.0)

    def send(self, kind: Any, name: str, request: Any) -> Any:
        """Call a service; return the future."""
        self.meet(kind, name)
        return self._clients[name].call_async(request)

    def meet(self, kind: Any, name: str, *, depth: int = 10) -> None:
        """Have a service and its client here know each other, while the node still answers.

        ``depth`` says how many requests and answers may wait here.
        """
        from rclpy.qos import QoSProfile

        if name not in self._clients:
            qos = QoSProfile(depth=depth)
            client = self.node.create_client(kind, name, qos_profile=qos)
            self._clients[name] = client
            self.until(client.service_is_ready, f"service {name}")
            self._until_known_to(self.until(lambda: self._owner(name), f"the node of {name}"))

    def forget_services(self) -> None:
        """Meet every service again before its next call: the node behind it is another one."""
        for client in self._clients.values():
            self.node.destroy_client(client)
        self._clients.clear()

    def _owner(self, service: str) -> str:
        """The node that offers a service, "" while the graph does not say."""
        known = {name for name, _ in self.node.get_service_names_and_types()}
        place = service if service.startswith("/") else f"/{service}"
        while place := place.rpartition("/")[0]:
            if f"{place}/get_parameters" in known:
                return place
        return ""

    def _until_known_to(self, node: str) -> None:
        """Wait until a node knows every client that was made here before.

        That a service is ready says what is known on this side. DDS gives up an answer to a client
        that the other side has not matched within 100 ms, which a busy machine takes. It learns of
        our clients in their order, so that an answer to the last one speaks for all of them.
        """
        from rcl_interfaces.srv import GetParameters

        last = self.node.create_client(GetParameters, f"{node}/get_parameters")
        futures: list[Any] = []
        asked = -math.inf

        def is_answered() -> bool:
            nonlocal asked
            if time.monotonic() - asked > 1.0 and last.service_is_ready():
                asked = time.monotonic()
                futures.append(last.call_async(GetParameters.Request()))
            return any(future.done() for future in futures)

        self.until(is_answered, f"an answer of {node}")
        self.node.destroy_client(last)

    def call(self, kind: Any, name: str, /, **fields: Any) -> Any:
        """Call a service and wait for its answer."""
        future = self.send(kind, name, kind.Request(**fields))
        self.until(future.done, f"an answer of {name}")
        return future.result()

    def listen(self, kind: Any, topic: str, qos: Any = 100) -> list[Any]:
        """Collect the messages of a topic; returns the growing list."""
        messages = self.received[topic]
        self.node.create_subscription(kind, topic, messages.append, qos)
        return messages

    def listen_timed(self, kind: Any, topic: str, qos: Any = 100) -> list[tuple[int, Any]]:
        """Collect messages with the wall time at which they were published, ns."""
        messages: list[tuple[int, Any]] = []

        def take(message: Any, info: Any) -> None:
            messages.append((info["source_timestamp"], message))

        callback: Any = take  # rclpy gives the second argument to those that take it
        self.node.create_subscription(kind, topic, callback, qos)
        return messages

    def publisher(self, kind: Any, topic: str, qos: Any = 10) -> Publisher:
        """Return a publisher that somebody listens to."""
        publisher = self.node.create_publisher(kind, topic, qos)
        self.until(lambda: publisher.get_subscription_count() > 0, f"a subscription to {topic}")
        return publisher

    def now(self) -> Time:
        return self.node.get_clock().now().to_msg()

    # lifecycle -------------------------------------------------------------------------------

    def state(self, node: str) -> str:
        from lifecycle_msgs.srv import GetState

        return str(self.call(GetState, f"{node}/get_state").current_state.label)

    def change(self, node: str, transition: str) -> bool:
        from lifecycle_msgs.msg import Transition
        from lifecycle_msgs.srv import ChangeState

        return bool(
            self.call(
                ChangeState, f"{node}/change_state", transition=Transition(label=transition)
            ).success
        )

    def bring_up(self, node: str) -> None:
        assert self.change(node, "configure")
        assert self.change(node, "activate")
        assert self.state(node) == "active"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(tmp_path_factory.mktemp("bench"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    pytest.importorskip("rclpy")
    found = Peer()
    yield found
    found.close()


@pytest.fixture
def fresh_bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.close()


@pytest.fixture
def fresh_peer() -> Iterator[Peer]:
    pytest.importorskip("rclpy")
    found = Peer()
    yield found
    found.close()
