"""Parameters of a node: declared once, checked the same from YAML, launch and ``ros2 param``.

The checks are plain functions that need no ROS, so that a launcher refuses a wrong
file before it starts a process. Only :func:`declare` imports rclpy.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from flashrt_ros.errors import (
    FlashrtError,
    ParameterRangeError,
    ParameterTypeError,
    UnknownParameterError,
)

if TYPE_CHECKING:
    from rclpy.node import Node
    from rclpy.parameter import Parameter

Value = bool | int | float | str | list[str] | list[float]
"""What a parameter may hold."""

Kind = Literal["bool", "int", "float", "str", "str[]", "float[]"]

ROS_PARAMETERS = frozenset({"use_sim_time", "start_type_description_service"})
"""Parameters that rclpy declares for every node."""

_ROS_PREFIX = "qos_overrides."


def is_of_ros(name: str) -> bool:
    """Say whether rclpy declares a parameter by itself."""
    return name in ROS_PARAMETERS or name.startswith(_ROS_PREFIX)


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A parameter that a node declares.

    Attributes:
        name: Unique within the node; names carry their unit (``_s``, ``_hz``).
        kind: Type of the value. An int is taken where a float is meant, and in a list of
            floats a word that spells one.
        default: Value where nothing else is said; equal to the one in the YAML.
        description: What the parameter does, for ``ros2 param describe`` and the docs.
        unit: SI unit, or "" for none.
        low: Smallest value allowed, or None; of every number of a list.
        high: Largest value allowed, or None; of every number of a list.
        choices: Strings allowed; empty allows any.
    """

    name: str
    kind: Kind
    default: Value
    description: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def range_text(self) -> str:
        """Range or choices in words, "" where everything of the kind goes."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"at least {self.low:g}"
        return "" if self.high is None else f"at most {self.high:g}"

    def check(self, value: object) -> Value:
        """Return the value in the declared type.

        Empty strings in a list are left out: ROS can't carry an empty list in a
        parameter file, so that ``[""]`` stands for it.

        Args:
            value: As YAML or ROS gave it; tuples and ``array.array`` count as lists.

        Raises:
            ParameterTypeError: The value has another type.
            ParameterRangeError: The value lies outside the range or the choices.
        """
        typed = self._typed(value)
        for number in typed if self.kind == "float[]" and isinstance(typed, list) else [typed]:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            below = self.low is not None and not number >= self.low
            above = self.high is not None and not number <= self.high
            if below or above or number != number:
                raise ParameterRangeError(
                    f"parameter '{self.name}' is out of range",
                    expected=f"{self.range_text} {self.unit}".strip() or "a number",
                    found=number,
                )
        if self.choices and typed not in self.choices:
            raise ParameterRangeError(
                f"parameter '{self.name}' has an unknown value",
                expected=self.range_text,
                found=repr(typed),
                fix=_suggest(str(typed), self.choices),
            )
        return typed

    def _typed(self, value: object) -> Value:
        match self.kind:
            case "bool" if isinstance(value, bool):
                return value
            case "int" if isinstance(value, int) and not isinstance(value, bool):
                return value
            case "float" if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
            case "str" if isinstance(value, str):
                return value
            case "str[]" | "float[]" if value is None:
                return []
            case "str[]" if isinstance(value, Iterable) and not isinstance(
                value, str | bytes | Mapping
            ):
                items = list(value)
                if all(isinstance(item, str) for item in items):
                    return [item for item in items if item]
            case "float[]" if isinstance(value, Iterable) and not isinstance(
                value, str | bytes | Mapping
            ):
                numbers = [_number(item) for item in value if item != ""]
                if None not in numbers:
                    return [number for number in numbers if number is not None]
        raise ParameterTypeError(
            f"parameter '{self.name}' has another type than declared",
            expected=self.kind,
            found=f"{type(value).__name__} {value!r}",
        )


def check_values(
    owner: str, specs: Sequence[ParameterSpec], values: Mapping[str, object]
) -> dict[str, Value]:
    """Check given values against declarations and fill in the defaults.

    Args:
        owner: Name of the node, for the message.
        specs: Everything that the node declares.
        values: As given; may lack any.

    Returns:
        One value for each declaration, in the declared types.

    Raises:
        UnknownParameterError: A name that nothing declares; names close matches.
        ParameterTypeError: A value has another type than declared.
        ParameterRangeError: A value lies outside its range.
    """
    known = {spec.name: spec for spec in specs}
    for name in values:
        if name not in known and not is_of_ros(name):
            raise UnknownParameterError(
                f"{owner} has no parameter '{name}'",
                fix=_suggest(name, known) or f"it has {', '.join(sorted(known))}",
            )
    return {
        spec.name: spec.check(values[spec.name]) if spec.name in values else spec.default
        for spec in specs
    }


def _number(item: object) -> float | None:
    """Return a number of a list, None where it is none."""
    if isinstance(item, bool) or not isinstance(item, int | float | str):
        return None
    try:
        return float(item)
    except ValueError:
        return None


def _suggest(name: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return "did you mean " + " or ".join(f"'{match}'" for match in close) + "?" if close else None


class Settings:
    """Typed read access to checked values; a copy, so that a later change does not show.

    Args:
        values: What :func:`check_values` returned.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)

    def names(self) -> tuple[str, ...]:
        """Return the name of every parameter."""
        return tuple(self._values)

    def boolean(self, name: str) -> bool:
        """Return a parameter of kind "bool"."""
        return bool(self._values[name])

    def integer(self, name: str) -> int:
        """Return a parameter of kind "int"."""
        value = self._values[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        """Return a parameter of kind "float"."""
        value = self._values[name]
        assert isinstance(value, int | float)
        return float(value)

    def seconds_ns(self, name: str) -> int:
        """Return a parameter in seconds as whole nanoseconds."""
        return round(self.number(name) * 1e9)

    def text(self, name: str) -> str:
        """Return a parameter of kind "str"."""
        return str(self._values[name])

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a parameter of kind "str[]"."""
        value = self._values[name]
        assert isinstance(value, list)
        return tuple(str(item) for item in value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a parameter of kind "float[]"."""
        value = self._values[name]
        assert isinstance(value, list)
        return tuple(float(item) for item in value)


def construct(construct_node: Callable[[], None]) -> None:
    """Run a node's constructor; what rclpy can't carry gets a message of ours.

    Raises:
        ParameterTypeError: A parameter file holds ``[]`` or null.
    """
    try:
        construct_node()
    except ValueError as error:
        if "PARAMETER_NOT_SET" not in str(error):
            raise
        raise ParameterTypeError(
            "a parameter given to the node has no value that ROS can carry",
            found="[] or null",
            fix='write [""] for an empty list',
        ) from error


def declare(node: Node, specs: Sequence[ParameterSpec]) -> None:
    """Declare parameters on a node, overrides checked and converted first.

    The node must have been made with ``allow_undeclared_parameters`` and
    ``automatically_declare_parameters_from_overrides``, so that an override that
    nothing declares is seen here instead of being ignored. From here on such a name
    is refused, also over ``ros2 param set``; an int is taken where a float is meant.

    Raises:
        UnknownParameterError: An override that nothing declares.
        ParameterTypeError: An override has another type than declared.
        ParameterRangeError: An override lies outside its range.
    """
    from rcl_interfaces.msg import ParameterDescriptor, SetParametersResult
    from rclpy.parameter import Parameter

    # rclpy says values, and returns parameters.
    overrides = cast("dict[str, Parameter]", node.get_parameters_by_prefix(""))
    given = {name: parameter.value for name, parameter in overrides.items()}
    values = check_values(node.get_name(), specs, given)
    known = {spec.name: spec for spec in specs}
    for spec in specs:
        if node.has_parameter(spec.name):
            node.undeclare_parameter(spec.name)
        # Typed by our own check: rclpy's static typing refuses an int for a float, and
        # can't tell an empty list of strings from one of numbers.
        descriptor = ParameterDescriptor(
            description=f"{spec.description} [{spec.unit}]" if spec.unit else spec.description,
            additional_constraints=f"{spec.kind} {spec.range_text}".strip(),
            dynamic_typing=True,
        )
        node.declare_parameter(spec.name, values[spec.name], descriptor, ignore_override=True)

    def convert(parameters: list[Parameter]) -> list[Parameter]:
        converted = []
        for parameter in parameters:
            spec = known.get(parameter.name)
            value = parameter.value
            if spec is not None and spec.kind == "float" and type(value) is int:
                parameter = Parameter(parameter.name, value=float(value))
            elif spec is not None and spec.kind == "float[]" and value:
                with contextlib.suppress(FlashrtError):  # refused by the check
                    # an empty list would have no type
                    parameter = Parameter(parameter.name, value=spec.check(value) or value)
            converted.append(parameter)
        return converted

    def check(parameters: list[Parameter]) -> SetParametersResult:
        try:
            check_values(node.get_name(), specs, {p.name: p.value for p in parameters})
        except FlashrtError as error:
            return SetParametersResult(successful=False, reason=f"{error.name}: {error}")
        return SetParametersResult(successful=True)

    node.add_pre_set_parameters_callback(convert)
    node.add_on_set_parameters_callback(check)


def read(node: Node, specs: Sequence[ParameterSpec]) -> Settings:
    """Read the values in force now; later changes don't reach the result."""
    names = [spec.name for spec in specs]
    given = {parameter.name: parameter.value for parameter in node.get_parameters(names)}
    return Settings(check_values(node.get_name(), specs, given))
