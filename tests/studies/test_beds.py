"""What the benchmark trains: each task learns, and is the same each time."""

import statistics

import pytest
import torch

from autowarm.lab.config import LabError
from autowarm.pretrained import detect
from studies import beds, bench
from studies.rows import Cell, PlannedRow

from .conftest import stored

RATES = {"llama-bytes": 1e-2, "cnn": 1e-2, "vit": 1e-2, "mlp": 1e-2, "recurrent": 1e-2}


@pytest.mark.parametrize("task", RATES)
def test_a_task_learns(task: str) -> None:
    row = bench.make(PlannedRow("cells", Cell(task, "adamw", 25, RATES[task]), "linear 0.1", 0))
    assert not row["diverged"]
    assert row["val_loss"] < 0.95 * row["first_loss"]


@pytest.mark.parametrize("task", beds.TASKS)
def test_a_step_draws_the_same_whatever_was_drawn_before(task: str) -> None:
    draw = beds.TASKS[task].draw
    first, other = draw(3, 7), draw(3, 8)
    torch.rand(5)
    assert all(torch.equal(a, b) for a, b in zip(first, draw(3, 7), strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], draw(4, 7)[0])


@pytest.mark.parametrize("task", beds.TASKS)
def test_its_weights_depend_on_the_seed_alone_and_are_new(task: str) -> None:
    recipe = beds.task(task)
    one, same, other = (torch.cat([p.flatten() for p in beds.network(recipe, seed).parameters()]) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not detect(beds.network(recipe, 1)).trained


def test_a_task_of_a_finished_study_is_refused_with_the_commit_that_holds_it() -> None:
    with pytest.raises(LabError, match=rf"'factor' went with its study, whose code is in commit {beds.FORMER}"):
        bench.make(PlannedRow("cells", Cell("factor", "adamw", 5, 0.01), "default", 0))


def test_runs_as_people_train_decay_weights_and_clip_gradients_and_others_do_not() -> None:
    cell = Cell("llama-bytes", "adamw", 2, 0.01)
    found = [beds.decay_and_clip(PlannedRow(part, cell, "default", 0)) for part in (beds.PEOPLE, "cells")]
    assert found == [(0.1, 1.0), (0.0, 0.0)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("study", "cell"),
    [("warm-up", Cell("mlp", "muon", 1000, 0.03)), ("warm-up", Cell("llama", "adamw", 200, 0.03)),
     ("unseen", Cell("recurrent", "adamw", 1000, 0.01))],
    ids=lambda one: getattr(one, "name", one),
)  # fmt: skip
def test_a_run_made_again_agrees_with_its_stored_row(study: str, cell: Cell) -> None:
    rows, seed = stored(study), 20 if study == "unseen" else 0
    # Of the seeds, pooled over the hand-set warm-ups that train: few seeds were run under each.
    every = [rows.losses("cells", cell, name).values() for name in ("linear 0.1", "linear 0.2", "linear 0.4")]
    noise = statistics.fmean(statistics.variance(some) for some in every if len(some) > 1) ** 0.5
    row = bench.make(PlannedRow("cells", cell, "linear 0.1", seed))
    # Two runs that rounding sets apart differ by √2 of it.
    assert abs(row["val_loss"] - rows.losses("cells", cell, "linear 0.1")[seed]) <= 4 * noise


@pytest.mark.long
def test_a_compiled_network_serves_one_run_after_another_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(seed: int) -> float:
        return float(bench.make(PlannedRow("cells", Cell("mlp", "adamw", 5, 0.01), "linear 0", seed))["val_loss"])

    plain = loss(0)
    monkeypatch.setattr(beds, "is_compiled", lambda run: True)
    first, other, again = loss(0), loss(1), loss(0)
    assert first == again != other
    assert first == pytest.approx(plain, rel=1e-4)
