"""Normal noise that is the same on every host, and the slots it is drawn into.

The bits come from NumPy's Philox, whose stream is fixed. Everything after uses only
``+ - * /``, ``sqrt``, comparisons and exact conversions on float64, each rounded by
IEEE 754 in one way: no libm, whose ``log`` differs from one C library to the next.
"""

from __future__ import annotations

import math
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from flashrt_ros.errors import ParameterRangeError, SpecError
from flashrt_ros.runtime.backend import Backend
from flashrt_ros.runtime.spec import ChannelRole, ChannelSpec, FieldSpec

NOISE_FIELD = "noise.values"
"""Key of the noise among the slots that a program reads."""

_Float64 = npt.NDArray[np.float64]

# Wichura (1988), algorithm AS 241 (PPND16): numerator and denominator of the inverse normal
# distribution, highest power first, in the middle, in the tails, and far out.
_CENTRE = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)
_TAIL = (
    (
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ),
)
_FAR = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580e0,
        5.46378491116411436990e0,
        6.65790464350110377720e0,
    ),
    (
        2.04426310338993978564e-15,
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ),
)

# ln 2 in two parts; the first has so few bits that an exponent times it is exact.
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_SQRT_HALF = 0.70710678118654752440
_NUM_LOG_TERMS = 13


def draw_normal(seed: int, counter: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Draw standard normal noise; a function of its arguments alone, on every host.

    Args:
        seed: Picks the stream, 0 to 2**63 - 1.
        counter: Number of the draw in the stream, 0 to 2**63 - 1. Draws of two numbers
            share no bits, whatever their size.
        shape: Extents, all positive.

    Returns:
        ``float32[shape]``, mean 0, variance 1, at most 8.3 in size.

    Raises:
        ParameterRangeError: Seed or counter is out of range.
        SpecError: An extent is not positive.
    """
    for name, value in (("seed", seed), ("counter", counter)):
        if not 0 <= value < 1 << 63:
            raise ParameterRangeError(
                f"noise can't be drawn with this {name}", expected="0 to 2**63 - 1", found=value
            )
    if any(extent <= 0 for extent in shape):
        raise SpecError("noise has an empty shape", expected="positive extents", found=shape)
    # The draw's number goes into the highest word of the block counter: the low words count the
    # blocks of one draw, so that the next draw does not begin inside of this one.
    philox = np.random.Philox(
        key=np.array([seed, 0], np.uint64), counter=np.array([0, 0, 0, counter], np.uint64)
    )
    bits = np.asarray(philox.random_raw(math.prod(shape)), np.uint64)
    # 52 bits, so that the half step to the middle of each interval is exact: never 0, never 1.
    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return inverse_normal(uniform).astype(np.float32).reshape(shape)


def inverse_normal(p: _Float64) -> _Float64:
    """Return the value that a standard normal variable stays below with probability ``p``.

    Relative error about 1e-15 (algorithm AS 241).

    Args:
        p: ``float64[n]``, each strictly between 0 and 1.
    """
    q = p - 0.5
    r = 0.180625 - q * q
    centre = q * _ratio(_CENTRE, r)
    side = np.minimum(p, 1.0 - p)
    r = np.sqrt(-natural_log(side))
    tail = np.where(r <= 5.0, _ratio(_TAIL, r - 1.6), _ratio(_FAR, r - 5.0))
    return np.where(np.abs(q) <= 0.425, centre, np.where(q < 0.0, -tail, tail))


def natural_log(x: _Float64) -> _Float64:
    """Return the natural logarithm, by exact operations and a series.

    ``x = m * 2**e`` with ``m`` around 1, and ``ln m = 2 artanh((m - 1) / (m + 1))``.

    Args:
        x: ``float64[n]``, positive and normal.
    """
    mantissa, exponent = np.frexp(x)
    is_low = mantissa < _SQRT_HALF
    mantissa = np.where(is_low, mantissa + mantissa, mantissa)
    scale = (exponent - is_low).astype(np.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = np.zeros_like(s)
    for term in range(_NUM_LOG_TERMS, 0, -1):
        series = (series + 1.0 / (2 * term + 1)) * square
    return scale * _LN2_HIGH + (scale * _LN2_LOW + (s + s) * (series + 1.0))


def _ratio(polynomials: tuple[tuple[float, ...], tuple[float, ...]], x: _Float64) -> _Float64:
    return _horner(polynomials[0], x) / _horner(polynomials[1], x)


def _horner(coefficients: tuple[float, ...], x: _Float64) -> _Float64:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


class NoiseRing:
    """Slots that the engine draws noise into, ahead of the plan that latches it.

    A slot keeps its bytes until every other slot was drawn into, or asked for again, since.

    Ownership: the ring owns the memory, which the host writes and graphs read in place;
    close it after the graphs that read :attr:`slots`.

    Args:
        shape: Of one plan's noise; all extents positive.
        num_slots: At least one more than there are plans between latch and commit.
        backend: Gives the memory; outlives the ring.

    Raises:
        SpecError: The shape is empty or there are no slots.
        BackendError: There is no such memory.
    """

    def __init__(self, shape: tuple[int, ...], *, num_slots: int, backend: Backend) -> None:
        if num_slots <= 0 or not shape or any(extent <= 0 for extent in shape):
            raise SpecError(
                "a noise ring is empty",
                expected="positive extents and at least one slot",
                found=f"shape {shape}, {num_slots} slots",
            )
        self._shape = shape
        channel, _, field = NOISE_FIELD.partition(".")
        spec = ChannelSpec(channel, ChannelRole.OBSERVATION, (FieldSpec(field, shape, "float32"),))
        self._block = backend.allocate_host_block(spec.slot_bytes * num_slots)
        self._slots = backend.import_slots(self._block.address, num_slots, spec)
        pitch = spec.slot_bytes
        self._arrays = [
            self._block.tensor("float32", shape, index * pitch).numpy()
            for index in range(num_slots)
        ]
        self._drawn: list[tuple[int, int] | None] = [None] * num_slots
        self._oldest_first = list(range(num_slots))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one plan's noise."""
        return self._shape

    @property
    def num_slots(self) -> int:
        """Slots in the ring."""
        return len(self._drawn)

    @property
    def slots(self) -> dict[str, torch.Tensor]:
        """``"noise.values"`` → ``float32[num_slots, *shape]``, for capture."""
        return dict(self._slots)

    def draw(self, seed: int, counter: int) -> int:
        """Draw noise into a slot, unless one holds this very draw.

        Args:
            seed: As in :func:`draw_normal`.
            counter: As in :func:`draw_normal`.

        Returns:
            Index of the slot.

        Raises:
            ParameterRangeError: Seed or counter is out of range; every slot is as before.
        """
        if (seed, counter) in self._drawn:
            return self._renew(self._drawn.index((seed, counter)))
        return self._write(draw_normal(seed, counter, self._shape), (seed, counter))

    def put(self, values: npt.NDArray[np.float32]) -> int:
        """Write given noise into a slot, to repeat a plan or to hold noise fixed.

        Args:
            values: ``float32[shape]``.

        Returns:
            Index of the slot.

        Raises:
            SpecError: Shape or dtype differ; every slot is as before.
        """
        if values.shape != self._shape or values.dtype != np.float32:
            raise SpecError(
                "noise does not fit the ring",
                expected=f"float32{list(self._shape)}",
                found=f"{values.dtype}{list(values.shape)}",
            )
        return self._write(values, None)

    def values(self, index: int) -> npt.NDArray[np.float32]:
        """Return the noise of a slot, in place, read only.

        Raises:
            SpecError: No slot has this index.
        """
        if not 0 <= index < self.num_slots:
            raise SpecError(
                "the noise ring has no such slot",
                expected=f"0 to {self.num_slots - 1}",
                found=index,
            )
        view: npt.NDArray[np.float32] = self._arrays[index].view()
        view.flags.writeable = False
        return view

    def close(self) -> None:
        """Let go of the memory; idempotent. No graph may read the slots any more."""
        self._block.close()

    def _write(self, values: npt.NDArray[np.float32], drawn: tuple[int, int] | None) -> int:
        index = self._oldest_first[0]
        self._drawn[index] = drawn
        self._arrays[index][...] = values
        return self._renew(index)

    def _renew(self, index: int) -> int:
        self._oldest_first.remove(index)
        self._oldest_first.append(index)
        return index

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
