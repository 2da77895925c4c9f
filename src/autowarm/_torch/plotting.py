"""The look of every plot, and the axes that one is drawn on."""

from collections.abc import Callable
from typing import Any, TypeVar

_Drawing = TypeVar("_Drawing", bound=Callable[..., Any])

# Okabe and Ito's palette, which can be told apart with any colour vision. A line's style or its label says the same
# again, for print.
BLUE, ORANGE, GREEN, PINK, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"
GREY, INK = "#6E7781", "#24292F"

# Figures are opaque, dark on white, so that they can be read on a page of either colour.
STYLE: Any = {
    "font.size": 11, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "xtick.labelsize": 10, "ytick.labelsize": 10, "legend.fontsize": 10, "legend.frameon": False,
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": GREY,
    "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": "#E1E4E8", "grid.linewidth": 0.8,
    "axes.prop_cycle": f"cycler('color', {[BLUE, ORANGE, GREEN, PINK, SKY, GREY]})",
    "lines.linewidth": 1.8, "figure.facecolor": "white", "savefig.facecolor": "white", "svg.hashsalt": "autowarm",
}  # fmt: skip


def styled(make: _Drawing) -> _Drawing:
    """Let a function draw in `STYLE`, whatever matplotlib's settings are elsewhere."""
    import matplotlib

    return matplotlib.rc_context(STYLE)(make)


def axes_or_new(ax: Any, width: float, height: float, rows: int = 1) -> Any:
    """Return the axes given, or new ones of this size in inches, a list if there are several rows."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("a plot needs matplotlib: pip install matplotlib") from None
    with plt.rc_context(STYLE):
        return plt.subplots(rows, figsize=(width, height), sharex=True, layout="constrained")[1]
