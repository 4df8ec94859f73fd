"""A process that hosts engines: names claimed, members built, served until it is stopped."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from flashrt_ros.engine.address import EngineSocket
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.host import FillingMember, Host, Member
from flashrt_ros.engine.host_channels import Commons
from flashrt_ros.engine.hosting import Stopper, announce
from flashrt_ros.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """A member to be built.

    Attributes:
        name: Its engine's.
        socket_group: Who may connect besides the user.
        device: Its engine's.
        num_threads: Of its engine; one number for a process.
        build: Makes the member at the claimed address, with what engines of the process read of
            each other; what it owns goes to the stack.
        settings: Of the loop, where the member has any.
    """

    name: str
    socket_group: str
    device: str
    num_threads: int
    build: Callable[[EngineSocket, ExitStack, Commons], Member | FillingMember]
    settings: EngineConfig | None = None


def serve_members(plans: Sequence[MemberPlan], stopper: Stopper, *, ready_fd: int = -1) -> None:
    """Claim the names, build the members, serve until stopped; what was taken is given back.

    The collector's frozen heap stays: the process is to end.

    The loop's settings are the largest that a member asks for. A client that stops one member
    stops the process, and so does a device that is lost.

    Args:
        plans: In the order in which they are built.
        stopper: Stops the loop.
        ready_fd: As of ``announce``.

    Raises:
        ConfigError: The members can't share a process.
        EngineRunningError: An engine of such a name runs.
        DeviceLostError: The device's context is gone; the process must end.
        FlashrtError: A model can't be built or captured.
        Exception: What a factory of the user's own raised. Of either a note says whose it is,
            where there are several members.
    """
    check_together(plans)
    settings = [plan.settings for plan in plans if plan.settings is not None]
    commons = Commons(settings)
    with ExitStack() as owned:
        # The names first: a second engine is refused before it loads anything.
        addresses = stopper.claim(
            lambda: [
                owned.enter_context(EngineSocket(plan.name, group=plan.socket_group))
                for plan in plans
            ]
        )
        members = []
        for plan, address in zip(plans, addresses, strict=True):
            try:
                members.append(plan.build(address, owned, commons))
            except Exception as error:  # a factory of the user's own may raise anything
                if len(plans) > 1:
                    error.add_note(f"engine '{plan.name}'")
                raise
        defaults = EngineConfig()
        host = owned.enter_context(
            Host(
                members,
                poll_reserve_us=max(
                    (one.poll_reserve_us for one in settings), default=defaults.poll_reserve_us
                ),
                busy_poll_us=max((one.busy_poll_us for one in settings), default=0),
                wake_early_us=max((one.wake_early_us for one in settings), default=0),
                owns_process=True,
            )
        )
        priority = max((one.rt_priority for one in settings), default=0)
        if priority:
            request_priority(priority)
        # What was loaded stays: the collector need not look at it in the loop.
        gc.collect()
        gc.freeze()
        stopper.attach(host)
        announce({member.address.name: member.engine.epoch for member in members}, ready_fd)
        host.run()


def check_together(plans: Sequence[MemberPlan]) -> None:
    """Refuse members that can't share a process.

    Raises:
        ConfigError: Two have one name, their thread counts differ, or their CUDA devices do.
    """
    names = [plan.name for plan in plans]
    if len(set(names)) < len(names):
        raise ConfigError(
            "engines of one process need a name each",
            expected="different names",
            found=", ".join(names),
        )
    threads = {plan.name: plan.num_threads for plan in plans}
    if len(set(threads.values())) > 1:
        raise ConfigError(
            "a process has one intra-op thread count, which decides the bytes",
            expected="the same num_threads for every engine in it",
            found=", ".join(f"{name}: {count}" for name, count in threads.items()),
            fix="make them agree, or give each engine a process",
        )
    devices = {plan.name: plan.device for plan in plans if plan.device != "cpu"}
    if len({device.partition(":")[2] or "0" for device in devices.values()}) > 1:
        raise ConfigError(
            "engines of one process share one CUDA device",
            expected="the same device for each",
            found=", ".join(f"{name}: {device}" for name, device in devices.items()),
            fix="give each device a process",
        )


def request_priority(priority: int) -> bool:
    """Ask for SCHED_FIFO; a refusal is logged with its cure, and the engine goes on without.

    Returns:
        Whether it was granted.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except (PermissionError, OSError) as error:
        logger.warning(
            "SCHED_FIFO priority %d was refused (%s): ticks will be late when the cores are busy; "
            "raise the limit of rtprio for this user, e.g. in /etc/security/limits.d",
            priority,
            error,
        )
        return False
    return True
