"""The shapes of warm-ups and decays: how the rate falls away from its peak.

A shape maps the distance p ∈ [0, 1] from the peak to a share of the peak rate, which is 1 at p = 0. A decay follows the
shape forwards, in time (p = 0 when the decay starts, 1 at the end) or in the gap (p = 1 − Δ/Δ'); a warm-up follows it
backwards.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

# Maps a float to a float, and an array or a tensor element by element.
Shape = Callable
Warmup = Literal["linear", "cosine"]
Decay = Literal["cosine", "linear", "1-sqrt", "power", "wsd", "wso"]

# WSD falls over this last share of the decay. The paper's ablation names WSD; the value is from the work it cites.
WSD_FALL = 0.2
# The exponent of "power". Among the exponents in use, 2 gives the gentlest end (1 is "linear").
POWER = 2


def linear(p):  # type: ignore[no-untyped-def]
    """1 − p."""
    return 1.0 - p


def cosine(p):  # type: ignore[no-untyped-def]
    """(1 + cos πp)/2, written cos²(πp/2), which keeps its relative precision near p = 1."""
    if isinstance(p, Tensor):
        return torch.cos(0.5 * math.pi * p) ** 2
    return math.cos(0.5 * math.pi * p) ** 2 if isinstance(p, float) else np.cos(0.5 * np.pi * p) ** 2


def one_minus_sqrt(p):  # type: ignore[no-untyped-def]
    """1 − √p: steep at first (Hägele et al., 2024)."""
    return 1.0 - p**0.5


def power(p):  # type: ignore[no-untyped-def]
    """(1 − p)², see `POWER`."""
    return (1.0 - p) ** POWER


def wsd(p):  # type: ignore[no-untyped-def]
    """Warm-up, stable, decay: 1, then linear to 0 over the last share `WSD_FALL`."""
    if isinstance(p, float):
        return min(1.0, (1.0 - p) / WSD_FALL)
    if isinstance(p, Tensor):
        return ((1.0 - p) / WSD_FALL).clamp(max=1.0)
    return np.minimum(1.0, (1.0 - p) / WSD_FALL)


def wso(p):  # type: ignore[no-untyped-def]
    """Warm-up and stable only: 1 throughout."""
    return p**0  # 1 in p's own type and shape


WARMUPS: Mapping[str, Shape] = {"linear": linear, "cosine": cosine}
DECAYS: Mapping[str, Shape] = {
    "cosine": cosine, "linear": linear, "1-sqrt": one_minus_sqrt, "power": power, "wsd": wsd, "wso": wso
}  # fmt: skip
# 1 − shape(p) on arrays, for the shapes where the subtraction would cancel near p = 0.
FALLS: Mapping[Shape, Shape] = {
    linear: lambda p: p,
    cosine: lambda p: np.sin(0.5 * np.pi * p) ** 2,
    one_minus_sqrt: lambda p: p**0.5,
    power: lambda p: p * (2.0 - p),
}
# The p at which a shape is not smooth, so that quadrature must split there.
KINKS: Mapping[Shape, float] = {wsd: 1.0 - WSD_FALL}
assert set(get_args(Decay)) == set(DECAYS)
assert set(get_args(Warmup)) == set(WARMUPS)


def warmup_shape(warmup: str) -> Shape:
    """Look up a warm-up by its name; if it is unknown, the ValueError lists the known ones."""
    return _look_up("warmup", warmup, WARMUPS)


def decay_shape(decay: str | Shape) -> Shape:
    """Look up a decay by its name, or check a user's function from p to a share of the peak rate.

    Raises:
        ValueError: the name is unknown, or the function does not take floats, is not 1 at p = 0, or leaves [0, 1] at
            one of a hundred p.
    """
    if not callable(decay):
        return _look_up("decay", decay, DECAYS)
    try:
        at = {p: float(decay(p)) for p in (i / 100 for i in range(101))}
    except TypeError as error:
        raise ValueError(
            f"a decay function must take a float, and for a tensor lr a 0-dim tensor too; this one raised: {error}. In "
            "torch operations, begin with p = torch.as_tensor(p)"
        ) from None
    wrong = next((p for p, value in at.items() if not (0.0 <= value <= 1.0 and (p or value == 1.0))), None)
    if wrong is not None:
        raise ValueError(
            f"a decay function maps the share p of the decay that has passed to a share of the peak rate, 1 at p = 0 "
            f"and within [0, 1] after; this one gives {at[wrong]:g} at p = {wrong:g}"
        )
    return decay


def is_flat(decay: Shape) -> bool:
    """Whether a decay stays at the peak rate, so that the run needs no planned end."""
    return all(float(decay(p)) == 1.0 for p in (0.0, 0.5, 1.0))


def name_of(decay: str | Shape) -> str:
    """The name of a decay; for a function that is not in `DECAYS`, its own name."""
    if isinstance(decay, str):
        return decay
    known = [name for name, shape in DECAYS.items() if shape is decay]
    return known[0] if known else str(getattr(decay, "__qualname__", type(decay).__name__))


def _look_up(what: str, name: str, known: Mapping[str, Shape]) -> Shape:
    if name not in known:
        length = isinstance(name, int | float) and what == "warmup"
        hint = "; it is the ramp's shape, and max_warmup limits its length" if length else ""
        raise ValueError(f"unknown {what} {name!r}: use one of {sorted(known)}{hint}")
    return known[name]
