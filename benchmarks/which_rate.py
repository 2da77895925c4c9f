"""Draws docs/figures/which-rate.png: a search that finds a rate, and one that cannot tell.

python benchmarks/which_rate.py
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))  # where `studies` is

from autowarm.lab.commands.find_rate import search
from autowarm.lab.config import EngineConfig, FindRateConfig, OptimizerConfig, RunConfig
from autowarm.plotting import styled
from studies.tasks import StudyTask

SEARCHES = (("llama", "muon", "Small LLaMA, Muon"), ("swin", "lion", "Small Swin, Lion: cannot tell"))


@styled
def main() -> None:
    """Make the two searches and draw them side by side."""
    drawn = Figure(figsize=(8.4, 3.4), layout="constrained")
    for axes, (task, optimizer, title) in zip(drawn.subplots(1, 2), SEARCHES, strict=True):
        run = RunConfig(
            task=StudyTask(task).key, steps=1000, clip=0.0, optimizer=OptimizerConfig(weight_decay=0.0),
            engine=EngineConfig(precision="float32", device="cpu"),
        )  # fmt: skip
        search(FindRateConfig(run, optimizer), StudyTask(task)).plot(ax=axes).set_title(title)
    drawn.savefig(Path(__file__).parent.parent / "docs" / "figures" / "which-rate.png", dpi=160)


if __name__ == "__main__":
    main()
