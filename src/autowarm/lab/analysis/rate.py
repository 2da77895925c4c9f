"""Shows the result of a range test: text in the terminal, the curve and numbers in a folder."""

from pathlib import Path

import numpy as np

from autowarm.plotting import styled
from autowarm.rate import RateSearch

from ..files import write_json
from .figures import axes_of, save


def words(found: RateSearch, total_steps: int, optimizer: str) -> str:
    """Describe the suggestion for a run of so many updates and its interval, or the reason why there is none."""
    tried = f"{len(found.rates)} updates of {optimizer}, rates from {found.rates[0]:.2g} to {found.rates[-1]:.2g}"
    if found.reason is not None:
        return f"no rate can be suggested: {found.reason}\n{tried}"
    low, high = found.interval
    suggested = f"suggestion  {found.suggestion:.2g} for {optimizer} and a run of {total_steps:,} updates"
    return f"{suggested}\ninterval    {low:.2g} to {high:.2g}\n{tried}"


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
