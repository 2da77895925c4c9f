"""A picture of the profile."""

from typing import TYPE_CHECKING

import numpy as np

from .profile import Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_profile"]


def plot_profile(
    profile: Profile, target_loss: float, *, rate: float | None = None, ax: "Axes | None" = None
) -> "Axes":
    """Draw η over the loss f* + Δ, from f(x0) on the left to f* on the right, as a run goes through it.

    Args:
        profile: η(Δ).
        target_loss: f*.
        rate: a present rate to mark, if any.
        ax: matplotlib axes to draw on; None makes new ones.

    Raises:
        ImportError: matplotlib is not installed.
    """
    if ax is None:
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            raise ImportError("plot() needs matplotlib: pip install matplotlib, or autowarm[lab]") from None
        ax = plt.subplots(figsize=(5.5, 3.2), layout="constrained")[1]
    gaps = np.linspace(0.0, profile.gap0, 500)[1:]
    ax.plot(target_loss + gaps, profile(gaps), label="η(Δ)")
    switch = target_loss + profile.peak_gap
    ax.axvline(switch, linestyle="--", color="0.5", label=f"switch to decay, loss {switch:.3g}")
    if rate is not None:
        ax.axhline(rate, linestyle=":", color="0.3", label=f"rate now, {rate:.3g}")
    ax.set(xlabel="loss", ylabel="learning rate", xlim=(target_loss + profile.gap0, target_loss), ylim=(0.0, None))
    ax.legend(frameon=False)
    return ax
