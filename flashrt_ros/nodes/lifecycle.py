"""Base of the lifecycle nodes: hooks that may raise, transitions off the executor."""
# rclpy.lifecycle has no annotations.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, cast

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.impl.rcutils_logger import RcutilsLogger
from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn
from rclpy.lifecycle.node import LifecycleNodeMixin
from rclpy.node import Node
from rclpy.task import Future

from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes.parameters import ParameterSpec, Settings, construct, declare, read

_Job = Callable[[], None]

PATIENCE_S = 0.3
"""How long a node that leaves waits for a call in progress before it cuts the connection."""

_LAST_WAIT_S = 0.5


class ManagedNode(LifecycleNodeMixin, Node):
    """A lifecycle node whose subclass says what each transition does.

    The hooks raise what went wrong. ``rclpy.lifecycle`` would swallow it; here a
    :class:`FlashrtError` is logged with its code and refuses the transition (the
    state stays), any other exception is logged with its traceback and goes through
    error processing to ``unconfigured``. Nothing half made survives either.

    Transitions run one after another in a thread of their own, so that the executor
    goes on answering while ``configure`` waits for the engine.

    Args:
        name: Node name; remapping may change it.
        specs: Parameters that the node declares.
        cli_args: ROS arguments for this node alone, after those of the process.

    Raises:
        UnknownParameterError: A parameter was given that nothing declares.
        ParameterTypeError: A parameter has another type than declared.
        ParameterRangeError: A parameter lies outside its range.
    """

    def __init__(
        self, name: str, specs: Sequence[ParameterSpec], *, cli_args: Sequence[str] = ()
    ) -> None:
        construct(
            lambda: Node.__init__(
                self,
                name,
                cli_args=list(cli_args),
                allow_undeclared_parameters=True,
                automatically_declare_parameters_from_overrides=True,
            )
        )
        self.specs = tuple(specs)
        self.is_closing = threading.Event()
        self.failure = ""
        self._fault: FlashrtError | None = None
        self._was_lost = False
        self._fault_lock = threading.Lock()  # several threads find an engine gone at once
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        declare(self, specs)
        # Reentrant: change_state stays in progress while others are answered.
        LifecycleNodeMixin.__init__(self, callback_group=ReentrantCallbackGroup())
        self._service_change_state.callback = cast(Any, self._change_state)
        self._worker = threading.Thread(target=self._work, name=f"{name}-lifecycle", daemon=True)
        self._worker.start()

    # hooks -----------------------------------------------------------------------------------

    def configure(self, settings: Settings) -> None:
        """Make everything; :meth:`release` follows if it raises."""
        raise NotImplementedError

    def configured(self) -> None:
        """Let go of what a lost session left behind; no fault came since ``configure`` began."""

    def activate(self) -> None:
        """Begin to act; all or nothing."""
        raise NotImplementedError

    def deactivate(self) -> None:
        """Stop acting."""
        raise NotImplementedError

    def release(self) -> None:
        """Free everything that ``configure`` made; idempotent, from any state."""
        raise NotImplementedError

    def lost(self, error: FlashrtError) -> None:
        """Act on a fault at once, in the thread that found it; the transition follows."""
        raise NotImplementedError

    def retire(self) -> None:
        """Stop acting at once, in the main thread, while executors still run.

        Must not wait for the engine. :meth:`deactivate` follows once the executors have left.
        """

    def cut(self) -> None:
        """End every wait for the engine, from any thread; the process leaves."""

    # for the subclass and the process --------------------------------------------------------

    @property
    def state_label(self) -> str:
        """Lifecycle state in words, transitions included."""
        return str(self._state_machine.current_state[1])

    @property
    def log(self) -> RcutilsLogger:
        """The node's logger."""
        return cast(RcutilsLogger, self.get_logger())

    @property
    def is_faulty(self) -> bool:
        """Whether a fault happened that no successful ``configure`` has followed."""
        return self._was_lost

    def read_settings(self) -> Settings:
        """Return the parameters in force now."""
        return read(self, self.specs)

    def fault(self, error: FlashrtError) -> None:
        """Take the node through error processing to ``unconfigured``; once per fault.

        Returns after :meth:`lost`; the transition runs in the lifecycle thread. From
        ``unconfigured`` the node can be configured again.
        """
        with self._fault_lock:
            if self._fault is not None or self.is_closing.is_set():
                return
            self._fault = error
            self._was_lost = True
        self.failure = f"{error.name}: {error}"
        self.log.fatal(f"fault: {self.failure}")
        self.lost(error)
        self._jobs.put(self._leave)

    def begin(self, on_failure: Callable[[], None]) -> None:
        """Configure, then activate, in the lifecycle thread.

        Args:
            on_failure: Called there, after the reason was logged, unless the node closes.
        """

        def start() -> None:
            succeeded = False
            try:
                succeeded = (
                    self.trigger_configure() == TransitionCallbackReturn.SUCCESS
                    and self.trigger_activate() == TransitionCallbackReturn.SUCCESS
                )
            finally:
                if not succeeded and not self.is_closing.is_set():
                    self.log.fatal("the node could not configure and activate itself")
                    on_failure()

        self._jobs.put(start)

    def close(self) -> None:
        """End the lifecycle thread, deactivate if active, free everything; idempotent.

        Executors must have left. Destroy the node afterwards.
        """
        self.is_closing.set()
        self._jobs.put(None)
        if self._worker is not threading.current_thread():
            self._worker.join(PATIENCE_S)
            if self._worker.is_alive():
                self.cut()
                self._worker.join(_LAST_WAIT_S)
        if self.state_label == "active" and self._fault is None:
            self._guarded("deactivate", self.deactivate)
        self._guarded("release", self.release)

    def destroy_node(self) -> None:
        """Destroy the node, and with the process's last one what it holds in the middleware.

        Jazzy's rclpy forgets the state machine, which would keep the node's handle and the
        DDS participant: a process that ends then leaves files in shared memory, and may leave
        a lock there that its peers wait for.
        """
        super().destroy_node()
        self._state_machine.destroy_when_not_in_use()

    # rclpy's side ----------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run :meth:`configure` with the parameters in force.

        The node stays faulty until it succeeded, so that whatever a fault set going is
        not ended by an attempt.
        """
        self._fault = None
        self.failure = ""
        outcome = self._guarded("configure", lambda: self.configure(self.read_settings()))
        if outcome == TransitionCallbackReturn.SUCCESS:
            with self._fault_lock:  # or the new session's fault would be forgotten with the old one
                if self._fault is None:
                    self.configured()
                    self._was_lost = False
        elif outcome == TransitionCallbackReturn.FAILURE:
            self._guarded("release", self.release)
        return outcome

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run :meth:`activate`."""
        return self._guarded("activate", self.activate)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run :meth:`deactivate`; after a fault, go to error processing instead."""
        if self._fault is not None:
            return TransitionCallbackReturn.ERROR
        return self._guarded("deactivate", self.deactivate)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run :meth:`release`; after a fault, go to error processing instead."""
        if self._fault is not None:
            return TransitionCallbackReturn.ERROR
        return self._guarded("cleanup", self.release)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Deactivate if active, then free everything."""
        if state.label == "active" and self._fault is None:
            self._guarded("deactivate", self.deactivate)
        return self._guarded("shutdown", self.release)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything; SUCCESS leads to ``unconfigured``."""
        return self._guarded("error processing", self.release)

    def _guarded(self, step: str, hook: _Job) -> TransitionCallbackReturn:
        try:
            hook()
        except FlashrtError as error:
            self.failure = f"{step} failed: {error.name}: {error}"
            self.log.error(self.failure)
            return TransitionCallbackReturn.FAILURE
        except Exception as error:  # noqa: BLE001 - the boundary of a transition
            self.failure = f"{step} failed: {type(error).__name__}: {error}"
            self.log.error(f"{step} failed\n{traceback.format_exc()}")
            return TransitionCallbackReturn.ERROR
        return TransitionCallbackReturn.SUCCESS

    def _leave(self) -> None:
        if self.state_label == "active":
            self.trigger_deactivate()
        elif self.state_label == "inactive":
            self.trigger_cleanup()

    async def _change_state(
        self, request: ChangeState.Request, response: ChangeState.Response
    ) -> ChangeState.Response:
        executor = self.executor
        future: Future = Future(executor=executor)

        def change() -> None:
            succeeded = False
            try:
                succeeded = self._transition(request.transition)
            finally:
                future.set_result(succeeded)
                if executor is not None:
                    executor.wake()

        self._jobs.put(change)
        response.success = await future
        return response

    def _transition(self, wanted: Transition) -> bool:
        number = int(wanted.id)
        if wanted.label:
            labels = {
                label: known for known, label, *_ in self._state_machine.available_transitions
            }
            number = labels.get(wanted.label, -1)
        triggers: dict[int, Callable[[], TransitionCallbackReturn]] = {
            Transition.TRANSITION_CONFIGURE: self.trigger_configure,
            Transition.TRANSITION_CLEANUP: self.trigger_cleanup,
            Transition.TRANSITION_ACTIVATE: self.trigger_activate,
            Transition.TRANSITION_DEACTIVATE: self.trigger_deactivate,
            Transition.TRANSITION_UNCONFIGURED_SHUTDOWN: self.trigger_shutdown,
            Transition.TRANSITION_INACTIVE_SHUTDOWN: self.trigger_shutdown,
            Transition.TRANSITION_ACTIVE_SHUTDOWN: self.trigger_shutdown,
        }
        allowed = [known for known, *_ in self._state_machine.available_transitions]
        if number not in allowed or number not in triggers:
            self.log.warning(
                f"transition {wanted.label or wanted.id} is not possible from {self.state_label}"
            )
            return False
        return bool(triggers[number]() == TransitionCallbackReturn.SUCCESS)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # noqa: BLE001 - the boundary of the lifecycle thread
                if not self.is_closing.is_set():
                    self.log.error(f"a transition failed\n{traceback.format_exc()}")
