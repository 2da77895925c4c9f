"""The shapes of warm-ups and decays: how the rate falls away from its peak.

A shape maps the distance p ∈ [0, 1] from the peak to a share of the peak rate, which is 1 at p = 0. A decay follows the
shape forwards, in time (p = 0 when the decay starts, 1 at the end) or in the gap (p = 1 − Δ/Δ'); a warm-up follows it
backwards.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

Shape = Callable[[float], float]
Warmup = Literal["linear", "cosine"]
Decay = Literal["cosine", "linear", "1-sqrt", "power", "wsd", "wso"]

STEPS = tuple(i / 100 for i in range(101))  # where functions are compared and checked
# WSD falls over this last share of the decay. The paper's ablation names WSD; the value is from the work it cites.
WSD_FALL = 0.2
# The exponent of "power". Among the exponents in use, 2 gives the gentlest end (1 is "linear").
POWER = 2


def linear(p: float) -> float:
    """1 − p."""
    return 1.0 - p


def cosine(p: float) -> float:
    """(1 + cos πp)/2, written cos²(πp/2), which keeps its relative precision near p = 1."""
    return math.cos(0.5 * math.pi * p) ** 2


def one_minus_sqrt(p: float) -> float:
    """1 − √p: steep at first (Hägele et al., 2024)."""
    return 1.0 - math.sqrt(p)


def power(p: float) -> float:
    """(1 − p)², see `POWER`."""
    return (1.0 - p) ** POWER


def wsd(p: float) -> float:
    """Warm-up, stable, decay: 1, then linear to 0 over the last share `WSD_FALL`."""
    return min(1.0, (1.0 - p) / WSD_FALL)


def wso(p: float) -> float:
    """Warm-up and stable only: 1 throughout."""
    return 1.0


WARMUPS: Mapping[str, Shape] = {"linear": linear, "cosine": cosine}
DECAYS: Mapping[str, Shape] = {
    "cosine": cosine, "linear": linear, "1-sqrt": one_minus_sqrt, "power": power, "wsd": wsd, "wso": wso
}  # fmt: skip
assert set(get_args(Decay)) == set(DECAYS), "a decay stands in Decay, too"
assert set(get_args(Warmup)) == set(WARMUPS), "a warm-up stands in Warmup, too"


def warmup_shape(warmup: str | Shape) -> Shape:
    """Look up a warm-up by its name, or check a user's function, as `decay_shape` does."""
    hint = "; it is the ramp's shape, and max_warmup limits its length" if isinstance(warmup, int | float) else ""
    return _checked("warmup", warmup, WARMUPS, hint)


def decay_shape(decay: str | Shape) -> Shape:
    """Look up a decay by its name, or check a user's function from p to a share of the peak rate.

    Raises:
        ValueError: the name is unknown, or the function does not take floats, is not 1 at p = 0, or leaves [0, 1] at
            one of a hundred p.
    """
    hint = '; "wso" stays at the peak' if decay in ("constant", "none", "flat", None) else ""
    return _checked("decay", decay, DECAYS, hint)


def is_flat(decay: Shape) -> bool:
    """Whether a decay stays at the peak rate, so that the run needs no planned end."""
    return all(float(decay(p)) == 1.0 for p in (0.0, 0.5, 1.0))


def name_of(shape: str | Shape, at: Sequence[float] = STEPS) -> str:
    """The name of a shape; a function's own, with a checksum of its values, for all lambdas have one name."""
    if isinstance(shape, str):
        return shape
    values = zlib.crc32(" ".join(f"{float(shape(p)):.9g}" for p in at).encode())
    own = f"{getattr(shape, '__qualname__', type(shape).__name__)}, with values of checksum {values:08x}"
    return next((name for name, each in DECAYS.items() if each is shape), own)


def _checked(what: str, shape: str | Shape, known: Mapping[str, Shape], hint: str) -> Shape:
    if not callable(shape):
        if isinstance(shape, str) and shape in known:
            return known[shape]
        raise ValueError(f"unknown {what} {shape!r}: use one of {sorted(known)}, or a function{hint}")
    try:
        at = {p: float(shape(p)) for p in STEPS}
    except (TypeError, AttributeError) as error:
        raise ValueError(f"a {what} function maps a float to a float; this one raised: {error}") from None
    wrong = next((p for p, value in at.items() if not (0.0 <= value <= 1.0 and (p or value == 1.0))), None)
    if wrong is not None:
        raise ValueError(
            f"a {what} function maps the distance p from the peak to a share of the peak rate, 1 at p = 0 and within "
            f"[0, 1] after; this one gives {at[wrong]:g} at p = {wrong:g}"
        )
    return shape
