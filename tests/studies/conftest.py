"""Rows: stored ones, and made-up ones."""

from pathlib import Path
from typing import Any

from studies import measures
from studies.rows import PlannedRow, Rows

DOCS = Path(__file__).parents[2] / "docs"


def stored(name: str) -> Rows:
    """The rows of a study that was made."""
    return measures.stored(DOCS / "data", name)


def row_of(run: PlannedRow, loss: float | None, **more: Any) -> dict[str, Any]:
    return {
        "part": run.part, "cell": vars(run.cell), "schedule": run.schedule, "seed": run.seed, "val_loss": loss,
        "diverged": loss is None, "seconds": run.cell.steps / 100, "first_loss": 5.0, **more,
    }  # fmt: skip
