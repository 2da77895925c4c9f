"""Draws docs/figures/which-rate.png: a search that finds a rate, and one that cannot tell.

python benchmarks/which_rate.py
"""

from pathlib import Path

from matplotlib.figure import Figure

from autowarm.lab.config import EngineConfig, FindRateConfig, OptimizerConfig, RunConfig
from autowarm.lab.execution.rate import search

SEARCHES = (("llama", "muon", "small LLaMA, Muon"), ("swin", "lion", "small Swin, Lion: cannot tell"))


def main() -> None:
    """Make the two searches and draw them side by side."""
    drawn = Figure(figsize=(9.6, 3.4), layout="constrained")
    for axes, (task, optimizer, title) in zip(drawn.subplots(1, 2), SEARCHES, strict=True):
        run = RunConfig(
            task=task, clip=0.0, optimizer=OptimizerConfig(weight_decay=0.0),
            engine=EngineConfig(precision="float32", device="cpu"),
        )  # fmt: skip
        search(FindRateConfig(run, optimizer)).plot(ax=axes).set_title(title, fontsize="medium")
    drawn.savefig(Path(__file__).parent.parent / "docs" / "figures" / "which-rate.png", dpi=120)


if __name__ == "__main__":
    main()
