"""Where a plot is drawn."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["axes_or_new"]


def axes_or_new(ax: "Axes | None", width: float, height: float) -> "Axes":
    """The axes given, or new ones of this size in inches.

    Raises:
        ImportError: new ones are needed, and matplotlib is not installed.
    """
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("a plot needs matplotlib: pip install matplotlib, or autowarm[lab]") from None
    found: Axes = plt.subplots(figsize=(width, height), layout="constrained")[1]
    return found
