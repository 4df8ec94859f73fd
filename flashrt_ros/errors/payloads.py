"""Of goals and observations: what a payload must be. Codes from 400."""

from __future__ import annotations

from flashrt_ros.errors.base import FlashrtError


class PayloadShapeError(FlashrtError):
    """A goal or observation has another shape than its channel declares."""

    code = 400
    name = "PAYLOAD_SHAPE"


class PayloadTypeError(FlashrtError):
    """A goal or observation has another dtype or encoding than its channel declares."""

    code = 401
    name = "PAYLOAD_TYPE"


class NonFiniteError(FlashrtError):
    """A goal or observation holds NaN or Inf."""

    code = 402
    name = "NON_FINITE"


class FrameError(FlashrtError):
    """A goal stands in a frame with no known transform."""

    code = 403
    name = "FRAME"


class GoalExpiredError(FlashrtError):
    """A goal is older than its lifetime, or not newer than its planner's last."""

    code = 404
    name = "GOAL_EXPIRED"


class JointStateError(FlashrtError):
    """A joint state lacks a joint that the policy needs."""

    code = 405
    name = "JOINT_STATE"


class PayloadRangeError(FlashrtError):
    """A goal or observation lies outside its channel's range."""

    code = 406
    name = "PAYLOAD_RANGE"
