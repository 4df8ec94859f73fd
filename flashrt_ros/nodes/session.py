"""What policy and planner node share: a session with an engine, status and diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rclpy.parameter import Parameter

from flashrt_ros.engine import protocol
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.errors import EngineGoneError, FlashrtError, UnknownEnvironmentError
from flashrt_ros.msg import EngineStatus
from flashrt_ros.nodes import messages
from flashrt_ros.nodes.configuration import engine_name
from flashrt_ros.nodes.frames import Frames
from flashrt_ros.nodes.lifecycle import ManagedNode
from flashrt_ros.nodes.links import Link, connect
from flashrt_ros.nodes.parameters import ParameterSpec, Settings
from flashrt_ros.nodes.reports import Reports

_CLOSING_S = 0.5
"""How long a node that leaves waits for an engine's word that it has stopped."""


class SessionNode(ManagedNode):
    """A lifecycle node that attaches to an engine at ``configure``.

    Args:
        name: Node name.
        specs: Parameters, those of a session among them.
        cli_args: ROS arguments for this node alone.

    Attributes:
        inputs: A second node, ``<name>_inputs``, for subscriptions; spun by an
            executor of its own, so that services never wait behind images.
        reports: Events, status, diagnostics and refusals.
        verbs: Connection for verbs.
        frames: Static transforms, known from ``configure`` on.
        model: What the engine said of its model, None without a session.
        settings: Parameters as they were at ``configure``.
    """

    def __init__(
        self, name: str, specs: Sequence[ParameterSpec], *, cli_args: Sequence[str] = ()
    ) -> None:
        super().__init__(name, specs, cli_args=cli_args)
        self.inputs = _inputs_node(self)
        self.reports = Reports(self, hardware_id="flashrt_ros")
        self.verbs = Link(self.fault)
        self.frames = Frames()
        self.model: protocol.ModelInfo | None = None
        self.settings = self.read_settings()
        self._timer = self.create_timer(self.settings.number("status_period_s"), self._report)

    def destroy_node(self) -> None:
        """Destroy the node, which hears of its clock no more."""
        self.reports.close()
        super().destroy_node()

    # hooks -----------------------------------------------------------------------------------

    def open_session(self, settings: Settings, client: EngineClient) -> None:
        """Make what the node needs besides the verbs; :meth:`close_session` follows a failure.

        Args:
            settings: Parameters in force.
            client: Connection for verbs; stays with :attr:`verbs`.
        """
        raise NotImplementedError

    def close_session(self) -> None:
        """Free what :meth:`open_session` made; idempotent."""
        raise NotImplementedError

    def facts(self) -> dict[str, object]:
        """Return what diagnostics add for this node."""
        raise NotImplementedError

    def doubt(self, status: protocol.Status) -> str:
        """Return what is odd about an active node's engine, in words; "" for nothing."""
        return ""

    # lifecycle -------------------------------------------------------------------------------

    def configure(self, settings: Settings) -> None:
        """Attach to the engine, waiting while it loads, and open a session."""
        self.settings = settings
        self.frames.close()
        self.frames = Frames(settings.texts("transforms"))
        self.frames.listen(
            self,
            now_ns=self.reports.now_ns,
            lifetime_ns=settings.seconds_ns("transform_lifetime_s"),
        )
        client = self.connect("verbs", wait_s=settings.number("connect_timeout_s"))
        self.verbs.attach(client)
        env_index = settings.integer("env_index")
        if env_index >= client.model.num_environments:
            raise UnknownEnvironmentError(
                f"the engine has no environment {env_index}",
                expected=f"env_index below {client.model.num_environments}",
                found=env_index,
            )
        self.model = client.model
        self.open_session(settings, client)
        self.log.info(
            f"attached to engine '{self.engine}': model {client.model.name}, "
            f"epoch {client.engine_epoch}, fingerprint {client.model.fingerprint}"
        )

    def release(self) -> None:
        """End the session; connections are closed after the reader was joined."""
        self.close_session()
        self.frames.close()
        self.verbs.close()
        self.model = None

    def cut(self) -> None:
        """End every wait for the engine; the next calls fail, until the node is closed."""
        self.verbs.cut()

    # for the subclass ------------------------------------------------------------------------

    @property
    def engine(self) -> str:
        """Resolved name of the engine."""
        return self.resolve_engine(self.settings.text("engine"))

    @property
    def patience_s(self) -> float | None:
        """Longest wait for an engine's answer; None for the connection's own, until it leaves."""
        return _CLOSING_S if self.is_closing.is_set() else None

    @property
    def uses_sim_time(self) -> bool:
        """Whether the node's clock follows ``/clock``."""
        return bool(self.get_parameter("use_sim_time").value)

    def resolve_engine(self, name: str) -> str:
        """Return an engine's full name; a relative one stands in the node's namespace."""
        return engine_name(self.get_namespace(), name)

    def connect(
        self,
        purpose: str,
        wait_s: float = 0.0,
        *,
        engine: str = "",
        start_with: str = "python -m flashrt_ros.engine",
    ) -> EngineClient:
        """Open one more connection to the engine.

        Args:
            purpose: What it is for; part of the client's name.
            wait_s: How long to wait for the engine.
            engine: Another engine's name, relative or absolute; "" for the node's own.
            start_with: As for ``links.connect``.

        Raises:
            EngineGoneError: No engine answered within ``wait_s``.
        """
        return connect(
            self.resolve_engine(engine) if engine else self.engine,
            f"{self.get_fully_qualified_name()}/{purpose}",
            wait_s=wait_s,
            request_s=self.settings.number("request_timeout_s"),
            busy_poll_us=self.settings.integer("busy_poll_us"),
            is_closing=self.is_closing,
            progress=self._progress,
            start_with=start_with,
        )

    def say(
        self,
        kind: protocol.EventKind,
        detail: str,
        *,
        epoch: int = 0,
        generation: int = 0,
    ) -> None:
        """Publish an event of the node's own."""
        self.reports.event(
            protocol.Event(
                kind=kind,
                engine_epoch=epoch,
                env_index=self.settings.integer("env_index"),
                generation=generation,
                tick=0,
                capsule_id="",
                duration_ns=0,
                detail=detail,
            )
        )

    def log_error(self, text: str) -> None:
        """Log an error from any thread."""
        self.log.error(text)

    # status ----------------------------------------------------------------------------------

    def _progress(self, text: str) -> None:
        self.log.info(text)
        message = self._message()
        message.detail = text
        self.reports.status(message)

    def _message(self) -> EngineStatus:
        return EngineStatus(
            engine=self.engine,
            env_index=self.settings.integer("env_index"),
            state="error" if self.is_faulty else self.state_label,
            detail=self.failure,
            goal_age_ns=-1,
            observation_age_ns=-1,
        )

    def _report(self) -> None:
        message = self._message()
        was_active = self.state_label == "active"
        if self.model is not None and not self.is_faulty:
            try:
                with self.verbs as client:
                    status = client.status(env_index=message.env_index)
                    message.engine_epoch = client.engine_epoch
                    messages.engine_status(message, status, client.model)
                if was_active and self.state_label == "active":
                    message.detail = message.detail or self.doubt(status)
            except EngineGoneError:
                message = self._message()  # the fault is known by now, and is told here
            except FlashrtError as error:
                message.detail = f"{error.name}: {error}"
        self.reports.status(message)
        level = DiagnosticStatus.OK
        summary = message.detail or f"{self.state_label}, engine {message.state}"
        if self.is_faulty:
            level = DiagnosticStatus.ERROR
        elif message.detail:
            level = DiagnosticStatus.WARN
        self.reports.diagnose(
            level,
            summary,
            {
                "lifecycle": self.state_label,
                "engine": message.engine,
                "engine state": message.state,
                "waiting for": message.waiting_for,
                "tick": message.tick,
                "generation": message.generation,
                "deadline misses": message.deadline_misses,
                **self.facts(),
            },
        )


def _inputs_node(owner: Node) -> Node:
    """Return a node in the owner's namespace, whatever ``__node`` the process was given."""
    name = f"{owner.get_name()}_inputs"
    # A section of a parameter file that names the owner does not reach this node by itself.
    # (rclpy says values, and returns parameters.)
    overrides = cast("dict[str, Parameter]", owner.get_parameters_by_prefix("qos_overrides"))
    qos = [
        Parameter(f"qos_overrides.{key}", value=parameter.value)
        for key, parameter in overrides.items()
    ]
    sim_time = owner.get_parameter("use_sim_time").value
    return Node(
        name,
        namespace=owner.get_namespace(),
        cli_args=[
            "--ros-args",
            "-r",
            f"__node:={name}",
            "-r",
            f"__ns:={owner.get_namespace()}",
        ],
        parameter_overrides=[Parameter("use_sim_time", value=bool(sim_time)), *qos],
        start_parameter_services=False,
        enable_rosout=False,
    )
