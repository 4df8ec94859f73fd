"""How every service of a node answers: an error becomes its code and message, never silence."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.service import Service

from flashrt_ros.errors import FlashrtError

SERVICE_QOS = QoSProfile(depth=256, reliability=ReliabilityPolicy.RELIABLE)
"""ROS keeps ten requests by default and loses those before them without a word: too few for a
trainer that resets all its environments at once."""

Response = TypeVar("Response")


def fill_failure(node: Node, name: str, error: Exception, response: Any) -> None:
    """Put an error into a reply and the log; an unexpected one with its traceback.

    Call it from the ``except`` block that caught the error.
    """
    if isinstance(error, FlashrtError):
        code, text = error, str(error)
        node.get_logger().warning(f"{name} refused: {error.name} ({error.code}): {text}")
    else:
        node.get_logger().error(f"{name} failed\n{traceback.format_exc()}")
        text = f"{type(error).__name__}: {error}"
        code = FlashrtError(text)
    response.success = False
    if hasattr(response, "error_code"):
        response.error_code = code.code
        response.error_msg = text
    else:  # a type of std_srvs
        response.message = f"{code.name}: {text}"


def serve(
    node: Node,
    kind: Any,
    name: str,
    handler: Callable[[Any, Any], None],
    *,
    group: CallbackGroup | None = None,
) -> Service:
    """Create a service whose handler fills the reply or raises.

    Args:
        node: Owner.
        kind: Service type.
        name: As to ``create_service``.
        handler: Gets request and reply. ``success`` is set after it returned.
        group: Callback group, or None for the node's.
    """

    def answer(request: Any, response: Any) -> Any:
        try:
            handler(request, response)
            response.success = True
        except Exception as error:  # noqa: BLE001 - the boundary of a service
            fresh = kind.Response()
            fill_failure(node, name, error, fresh)
            return fresh
        return response

    return node.create_service(kind, name, answer, qos_profile=SERVICE_QOS, callback_group=group)
