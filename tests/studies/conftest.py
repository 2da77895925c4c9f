"""A study that is made up: every planned run, its loss by a formula, so that what must come out is known.

And fewer of the texts that a fine-tuned model learns first.
"""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab.config import DataConfig
from studies.cells import DEFAULT, PAPER, TUNING_SEED
from studies.plans.warm_up import STAGES, Stage, missing
from studies.rows import PlannedRow, Rows
from studies.tasks import finetuning
from tests.lab.conftest import jobs_here as jobs_here

DOCS = Path(__file__).parents[2] / "docs"
BEST_SHARE, NOISE, AHEAD = 0.1, 0.001, 0.02


def made_up(run: PlannedRow) -> dict[str, Any]:
    """Loss 3 under the best hand-set length, 10 %; a seed adds the same to every schedule, and noise to each."""
    common = random.Random(run.seed).uniform(-0.3, 0.3)
    noise = NOISE * random.Random(f"{run.cell.name} {run.schedule} {run.seed} {run.part}").gauss(0, 1)
    loss, warmup, ended_by = 3.0 + common + noise, None, None
    if run.seed == TUNING_SEED:
        loss = 3.0 + abs(run.cell.lr - 0.003)  # the tuned rate
    elif run.schedule.startswith(("linear ", "tenth ")):
        start, share = run.schedule.split()
        loss += 3.0 * abs(float(share) - BEST_SHARE) + 0.3 * (start == "tenth")
        warmup = round(float(share) * run.cell.steps)
    elif run.schedule == PAPER:
        loss += 0.6
        assert run.target_loss is not None
    elif run.schedule.startswith(DEFAULT):
        loss -= 3.0 * AHEAD
        warmup, ended_by = run.cell.steps // 4, "loss"
    return row_of(run, loss) | {"first_loss": 6.0, "warmup_steps": warmup, "ended_by": ended_by}


def said(page: str) -> str:
    """What a page says, on one line."""
    return " ".join((DOCS / page).read_text(encoding="utf-8").split())


def stored(name: str) -> Rows:
    """The rows of a study that was made."""
    return Rows.load(DOCS / "data" / "studies" / f"{name}.jsonl")


def row_of(run: PlannedRow, loss: float) -> dict[str, Any]:
    return {
        "part": run.part, "cell": vars(run.cell), "schedule": run.schedule, "seed": run.seed, "val_loss": loss,
        "diverged": False, "seconds": run.cell.steps / 100,
    }  # fmt: skip


def whole(
    stages: Mapping[str, Stage] = STAGES,
    make: Callable[[PlannedRow], dict[str, Any]] = made_up,
    rows: Rows | None = None,
) -> tuple[Rows, int]:
    """The rows of a whole study, beginning with those that are there, and in how many rounds they were planned."""
    rows, rounds = rows or Rows(), 0
    while left := missing(rows, stages):
        rows, rounds = Rows([*rows, *map(make, left)]), rounds + 1
    return rows, rounds


@pytest.fixture
def few_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fourth of them: to tokenise them all takes longer than to learn from them."""
    documents = sorted(finetuning.read_documents(DataConfig()))[::4]
    monkeypatch.setattr(finetuning, "read_documents", lambda _: documents)


@pytest.fixture(scope="session")
def study() -> Rows:
    return whole()[0]
