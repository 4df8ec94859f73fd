"""Of configurations: parameters, models, weights, and what ``prove`` finds. Codes from 500."""

from __future__ import annotations

from flashrt_ros.errors.base import FlashrtError


class ConfigError(FlashrtError):
    """A configuration can't be used as it stands."""

    code = 500
    name = "CONFIG"


class UnknownParameterError(FlashrtError):
    """A parameter that nothing declares; names close matches."""

    code = 501
    name = "UNKNOWN_PARAMETER"


class ParameterTypeError(FlashrtError):
    """A parameter has another type than declared."""

    code = 502
    name = "PARAMETER_TYPE"


class ParameterRangeError(FlashrtError):
    """A parameter lies outside its range."""

    code = 503
    name = "PARAMETER_RANGE"


class WeightsError(FlashrtError):
    """A weights file is missing, damaged or of another architecture."""

    code = 504
    name = "WEIGHTS"


class UnknownModelError(FlashrtError):
    """The registry has no model of this name."""

    code = 505
    name = "UNKNOWN_MODEL"


class ProofError(FlashrtError):
    """``prove`` found state outside the declared state, or declared state that is none."""

    code = 506
    name = "PROOF"
