"""Shows the result of a range test: text and a curve in the terminal, plots and numbers in a folder."""

from pathlib import Path
from typing import Any

import numpy as np
import plotille
from rich.console import Console

from autowarm.plotting import styled
from autowarm.rate import RateSearch

from ..files import write_json
from .figures import axes_of, save


def words(found: RateSearch, total_steps: int) -> str:
    """Describe the suggestion for a run of so many updates and its interval, or the reason why there is none."""
    tried = f"{len(found.rates)} updates, rates from {found.rates[0]:.2g} to {found.rates[-1]:.2g}"
    if found.reason is not None:
        return f"no rate can be suggested: {found.reason}\n{tried}"
    low, high = found.interval
    suggested = f"suggestion  {found.suggestion:.2g} for a run of {total_steps:,} updates"
    return f"{suggested}\ninterval    {low:.2g} to {high:.2g}\n{tried}"


def canvas(console: Console, height: int, xlim: tuple[float, float], ylim: tuple[float, float]) -> Any:
    """Make a picture of characters for a console, at most 100 columns wide with its labels."""
    picture = plotille.Figure()
    picture.width, picture.height = max(30, min(console.width, 100) - 16), height
    picture.set_x_limits(*xlim)
    picture.set_y_limits(*ylim)
    picture.color_mode, picture.with_colors = "names", console.is_terminal
    return picture


def terminal(found: RateSearch, console: Console) -> str:
    """Draw the curve in characters for a console. | marks the suggestion, : the interval."""
    level = found.smoothed[np.isfinite(found.smoothed)]
    if not level.size:
        return ""
    room = 0.1 * max(float(np.ptp(level)), 1e-3 * abs(float(level[0])), 1e-12)
    low, high = float(level.min() - room), float(level.max() + room)
    logs = np.log10(found.rates)
    picture = canvas(console, 12, (float(logs[0]), float(logs[-1])), (low, high))
    picture.x_label, picture.y_label = "rate", "loss"
    picture.x_ticks_fkt = lambda tick, _: f"{10**tick:.0e}"
    picture.y_ticks_fkt = lambda tick, _: f"{tick:8.4g}"
    inside = (found.losses > low) & (found.losses < high)
    picture.scatter(logs[inside], found.losses[inside], lc="white", marker="·")
    picture.plot(logs, found.smoothed, lc="cyan")
    if found.reason is None:
        column = np.linspace(low, high, 13)[:-1]
        for rate, marker in ((found.interval[0], ":"), (found.interval[1], ":"), (found.suggestion, "|")):
            picture.scatter(np.full_like(column, np.log10(rate)), column, lc="red", marker=marker)
    return str(picture.show())


@styled
def write(found: RateSearch, folder: Path) -> list[Path]:
    """Write find-rate.json, .png and .svg, and return their paths."""
    told = found.reason is None
    numbers = {
        "suggestion": found.suggestion if told else None,
        "interval": list(found.interval) if told else None,
        "reason": found.reason,
        "rates": found.rates.tolist(),
        "losses": [loss if np.isfinite(loss) else None for loss in found.losses.tolist()],
    }
    write_json(folder / "find-rate.json", numbers)
    drawn, [axes] = axes_of()
    found.plot(ax=axes)
    return [folder / "find-rate.json", *save(drawn, folder / "find-rate")]
