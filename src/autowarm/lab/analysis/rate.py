"""Shows the result of a range test: text and a curve in the terminal, plots and numbers in a folder."""

import json
from pathlib import Path

import numpy as np
import plotille
from matplotlib.figure import Figure

from autowarm.plotting import styled
from autowarm.rate import RateSearch

from ..files import write_atomically
from .figures import save


def words(found: RateSearch, total_steps: int) -> str:
    """Describe the suggestion for a run of so many updates and its interval, or the reason why there is none."""
    tried = f"{len(found.rates)} updates, rates from {found.rates[0]:.2g} to {found.rates[-1]:.2g}"
    if found.reason is not None:
        return f"no rate can be suggested: {found.reason}\n{tried}"
    low, high = found.interval
    suggested = f"suggestion  {found.suggestion:.2g} for a run of {total_steps:,} updates"
    return f"{suggested}\ninterval    {low:.2g} to {high:.2g}\n{tried}"


def terminal(found: RateSearch, width: int, *, colour: bool) -> str:
    """Draw the curve in characters, `width` columns wide. | marks the suggestion, : the interval."""
    level = found.smoothed[np.isfinite(found.smoothed)]
    if not level.size:
        return ""
    room = 0.1 * max(float(np.ptp(level)), 1e-3 * abs(float(level[0])), 1e-12)
    low, high = float(level.min() - room), float(level.max() + room)
    logs = np.log10(found.rates)
    picture = plotille.Figure()
    picture.width, picture.height = max(30, width - 16), 12
    picture.set_x_limits(float(logs[0]), float(logs[-1]))
    picture.set_y_limits(low, high)
    picture.x_label, picture.y_label = "rate", "loss"
    picture.x_ticks_fkt = lambda tick, _: f"{10**tick:.0e}"
    picture.y_ticks_fkt = lambda tick, _: f"{tick:8.4g}"
    picture.color_mode, picture.with_colors = "names", colour
    inside = (found.losses > low) & (found.losses < high)
    picture.scatter(logs[inside], found.losses[inside], lc="white", marker="·")
    picture.plot(logs, found.smoothed, lc="cyan")
    if found.reason is None:
        column = np.linspace(low, high, 13)[:-1]
        for rate, marker in ((found.interval[0], ":"), (found.interval[1], ":"), (found.suggestion, "|")):
            picture.scatter(np.full_like(column, np.log10(rate)), column, lc="red", marker=marker)
    return str(picture.show())


@styled
def figure(found: RateSearch) -> Figure:
    """Draw the curve as a figure."""
    drawn = Figure(figsize=(5.6, 3.6), layout="constrained")
    found.plot(ax=drawn.subplots())
    return drawn


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
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "find-rate.json", json.dumps(numbers, indent=2) + "\n")
    return [folder / "find-rate.json", *save(figure(found), folder / "find-rate")]
