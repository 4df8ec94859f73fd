"""The capsule verbs as services, for every node that hosts a model's session."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.node import Node
from std_srvs.srv import Trigger

from flashrt_ros.engine import protocol
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.errors import PayloadRangeError, SpecError
from flashrt_ros.nodes import messages
from flashrt_ros.nodes.conversions import ns_to_stamp, stamp_to_ns
from flashrt_ros.nodes.fence import Fence
from flashrt_ros.nodes.links import Link
from flashrt_ros.nodes.services import serve
from flashrt_ros.srv import (
    DropCapsule,
    ForkCapsule,
    ListCapsules,
    LoadCapsule,
    PinCapsule,
    ResetEpisode,
    RestoreCapsule,
    Resume,
    RollbackCapsule,
    SaveCapsule,
    SelectBranch,
    SnapshotCapsule,
)

_PAGE = 64
_MAX_SEED = 2**63 - 1
HOME = "home"


class CapsuleServices:
    """``~/reset``, ``~/reset_episode``, ``~/resume`` and ``~/capsule/*``.

    Each raises the fence before it answers, so that no action from before a reset is
    published after the caller knows of it.

    Args:
        node: Gets the services; destroys them with itself.
        link: Connection for the verbs.
        fence: Raised by every verb that moves an environment.
        env_index: Environment that ``~/reset`` resets.
        now_ns: The node's clock, for the barrier.
    """

    def __init__(
        self,
        node: Node,
        link: Link,
        fence: Fence,
        *,
        env_index: Callable[[], int],
        now_ns: Callable[[], int],
    ) -> None:
        self._link = link
        self._fence = fence
        self._env_index = env_index
        self._now_ns = now_ns
        serve(node, Trigger, "~/reset", self._reset)
        serve(node, ResetEpisode, "~/reset_episode", self._reset_episode)
        serve(node, Resume, "~/resume", self._resume)
        serve(node, SnapshotCapsule, "~/capsule/snapshot", self._snapshot)
        serve(node, RestoreCapsule, "~/capsule/restore", self._restore)
        serve(node, ForkCapsule, "~/capsule/fork", self._fork)
        serve(node, SelectBranch, "~/capsule/select", self._select)
        serve(node, RollbackCapsule, "~/capsule/rollback", self._rollback)
        serve(node, ListCapsules, "~/capsule/list", self._list)
        serve(node, DropCapsule, "~/capsule/drop", self._drop)
        serve(node, PinCapsule, "~/capsule/pin", self._pin)
        serve(node, SaveCapsule, "~/capsule/save", self._save)
        serve(node, LoadCapsule, "~/capsule/load", self._load)

    def _moved(
        self, env_index: int, move: Callable[[EngineClient], protocol.Moved]
    ) -> protocol.Moved:
        with self._link as client:
            moved = move(client)
        self._fence.raise_to(env_index, moved.generation)
        return moved

    def _reset(self, request: Trigger.Request, response: Trigger.Response) -> None:
        # Trainers call it between episodes: nothing is done twice, and nothing after the
        # engine's answer but what keeps the promise about older actions.
        env_index = self._env_index()
        stamp_ns = self._now_ns()
        with self._link as client:
            moved = client.reset(HOME, env_index=env_index, stamp_ns=stamp_ns)
        self._fence.raise_to(env_index, moved.generation)
        response.message = (
            f"{HOME} restored by {moved.path}: tick {moved.tick}, generation {moved.generation}"
        )

    def _begin_episode(
        self, env_index: int, capsule: str, keep_goal: bool, seed: int | None, episode_id: str
    ) -> protocol.Moved:
        # The engine knows whether this id was the last one, and then answers as it did before.
        now_ns = self._now_ns()
        return self._moved(
            env_index,
            lambda client: client.restore(
                capsule,
                env_index=env_index,
                keep_goal=keep_goal,
                seed=seed,
                reset=True,
                episode_id=episode_id,
                stamp_ns=now_ns,
            ),
        )

    def _reset_episode(
        self, request: ResetEpisode.Request, response: ResetEpisode.Response
    ) -> None:
        moved = self._begin_episode(
            request.env_index,
            request.capsule or HOME,
            request.keep_goal,
            _seed(request.seed) if request.has_seed else None,
            request.episode_id,
        )
        self._fill(response, moved)
        response.capsule_id = moved.capsule_id
        response.barrier = ns_to_stamp(moved.barrier_ns)

    def _restore(self, request: RestoreCapsule.Request, response: RestoreCapsule.Response) -> None:
        moved = self._moved(
            request.env_index,
            lambda client: client.restore(
                request.capsule,
                env_index=request.env_index,
                keep_goal=request.keep_goal,
                seed=_seed(request.seed) if request.has_seed else None,
            ),
        )
        self._fill(response, moved)
        response.capsule_id = moved.capsule_id

    def _resume(self, request: Resume.Request, response: Resume.Response) -> None:
        moved = self._moved(
            request.env_index,
            lambda client: client.resume(env_index=request.env_index, keep_goal=request.keep_goal),
        )
        self._fill(response, moved)
        response.capsule_id = moved.capsule_id
        response.depth = moved.depth

    def _select(self, request: SelectBranch.Request, response: SelectBranch.Response) -> None:
        moved = self._moved(
            request.env_index,
            lambda client: client.select(
                request.branch,
                env_index=request.env_index,
                release_others=request.release_others,
            ),
        )
        self._fill(response, moved)

    def _rollback(
        self, request: RollbackCapsule.Request, response: RollbackCapsule.Response
    ) -> None:
        moved = self._moved(
            request.env_index,
            lambda client: client.rollback(
                env_index=request.env_index,
                boundaries=request.boundaries,
                capsule=request.capsule,
            ),
        )
        self._fill(response, moved)
        response.capsule = moved.capsule_id

    def _snapshot(
        self, request: SnapshotCapsule.Request, response: SnapshotCapsule.Response
    ) -> None:
        with self._link as client:
            reply = client.snapshot(
                request.name,
                env_index=request.env_index,
                labels=tuple(request.labels),
                pinned=request.pinned,
                replace=request.replace,
                align_down=request.align_down,
                persist=request.persist,
            )
        response.capsule = messages.capsule_info(reply.capsule)
        response.tail_length = reply.tail_length

    def _fork(self, request: ForkCapsule.Request, response: ForkCapsule.Response) -> None:
        with self._link as client:
            reply = client.fork(
                request.count,
                env_index=request.env_index,
                capsule=request.capsule,
                seeds=tuple(_seed(seed) for seed in request.seeds),
            )
        response.capsule_id = reply.capsule_id
        response.branches = list(reply.branches)
        response.seeds = list(reply.seeds)

    def _list(self, request: ListCapsules.Request, response: ListCapsules.Response) -> None:
        """Collect pages, because a message of the engine is bounded and a ROS reply is not."""
        if request.only_pinned and request.only_unpinned:
            raise SpecError("no capsule is both pinned and unpinned", fix="ask for one of them")
        is_about_pins = request.only_pinned or request.only_unpinned
        wanted = request.limit or None
        offset = request.offset
        while True:
            left = _PAGE if wanted is None else min(_PAGE, wanted - len(response.capsules))
            with self._link as client:
                page = client.list_capsules(
                    offset=offset,
                    limit=left,
                    label=request.label,
                    name_prefix=request.name_prefix,
                    since_ns=stamp_to_ns(request.since),
                    until_ns=stamp_to_ns(request.until),
                    tier=request.tier,
                    pinned=request.only_pinned if is_about_pins else None,
                    env_index=request.env_index,
                )
            response.capsules.extend(messages.capsule_info(info) for info in page.capsules)
            response.total = page.total
            offset += len(page.capsules)
            if not page.capsules or offset >= page.total or len(response.capsules) == wanted:
                return

    def _drop(self, request: DropCapsule.Request, response: DropCapsule.Response) -> None:
        with self._link as client:
            client.drop(request.capsule, env_index=request.env_index)

    def _pin(self, request: PinCapsule.Request, response: PinCapsule.Response) -> None:
        with self._link as client:
            reply = client.pin(request.capsule, pinned=request.pinned, env_index=request.env_index)
        response.capsule = messages.capsule_info(reply.capsule)

    def _save(self, request: SaveCapsule.Request, response: SaveCapsule.Response) -> None:
        with self._link as client:
            saved = client.save(
                request.capsule,
                env_index=request.env_index,
                file=request.file,
                replace=request.replace,
            )
        response.file = saved.file
        response.num_bytes = saved.num_bytes
        response.digest = saved.digest
        response.duration_ns = saved.duration_ns

    def _load(self, request: LoadCapsule.Request, response: LoadCapsule.Response) -> None:
        with self._link as client:
            reply = client.load(
                request.file,
                env_index=request.env_index,
                name=request.name,
                pinned=request.pinned,
                replace=request.replace,
            )
        response.capsule = messages.capsule_info(reply.capsule)

    def _fill(
        self,
        response: ResetEpisode.Response
        | RestoreCapsule.Response
        | Resume.Response
        | SelectBranch.Response
        | RollbackCapsule.Response,
        moved: protocol.Moved,
    ) -> None:
        response.engine_epoch = self._fence.epoch
        response.generation = moved.generation
        response.tick = moved.tick
        response.path = moved.path
        response.duration_ns = moved.duration_ns


def _seed(value: int) -> int:
    """Return a seed that fits the environment's int64 STATE.

    Raises:
        PayloadRangeError: It does not.
    """
    if value > _MAX_SEED:
        raise PayloadRangeError(
            "the seed is too large", expected=f"at most {_MAX_SEED}", found=value
        )
    return int(value)
