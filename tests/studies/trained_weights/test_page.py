"""What the pages say of trained weights, against the stored rows."""

import csv
import statistics

import pytest
import torch

from autowarm.lab.training.schedules import hand_set
from autowarm.pretrained import detect
from autowarm.schedule import core
from studies.cells import DEFAULT
from studies.plans.transfer import EARLIER, FINE_TUNING, with_default
from studies.regret import excess
from studies.tasks import TASKS, finetuning

from ..conftest import DOCS, said, stored


def test_the_counts_of_models_are_those_of_the_table() -> None:
    with open(DOCS / "data" / "tables" / "trained-weights.csv") as file:
        rows = list(csv.DictReader(file))
    shipped = [row for row in rows if row["part"] in ("timm", "torchvision", "transformers")]
    assert {row["truth"] for row in shipped} == {row["says"] for row in shipped} == {"new"}
    tasks = {"mlp", "text", "convnet", "vit", "gpt"}
    after = {n: [row for row in rows if row["part"] in tasks and row["updates"] == str(n)] for n in (50, 200, 1000)}
    missed = {n: sum(row["says"] == "new" for row in some) for n, some in after.items()}
    assert [len(some) for some in after.values()] == [30, 30, 30]
    first = (
        f"No new model of {len(shipped)}](data/tables/trained-weights.csv) was taken for trained. Of 30 models trained "
    )
    assert (missed[200], missed[50], missed[1000]) == (0, 12, 0)
    packages = [row for row in rows if row["part"] == "shipped"]
    assert (sum(row["says"] == "new" for row in packages), len(packages)) == (1, 11)
    words = "for 200 updates it missed none, of 30 trained for 50, 12, and of 11 weights that packages ship, one."
    assert first + words in said("how-it-works.md")


def test_what_the_page_says_of_fine_tuning() -> None:
    rows = with_default(stored("fine-tuning"))
    before = [row for row in rows if row["schedule"] == EARLIER]
    assert all(row["warmup_steps"] == row["cell"]["steps"] // 10 for row in before)
    assert all(row["warmup_steps"] == row["cell"]["steps"] * 3 // 100 for row in rows if row["schedule"] == DEFAULT)
    settings = FINE_TUNING.judged(rows)
    costs = [excess(rows, setting, (DEFAULT, EARLIER)) for setting in settings]
    ours, theirs = ([one[name].mean for one in costs] for name in (DEFAULT, EARLIER))
    assert max(ours) < max(theirs)
    assert (
        f"A longest warm-up of 3% of the run costs {statistics.fmean(ours):.2f}% of the loss in the mean over "
        f"{len(settings)} settings, and {max(ours):.1f}% at worst; a tenth, as before, "
        f"{statistics.fmean(theirs):.2f}% and {max(theirs):.1f}%."
    ) in said("evidence.md")


@pytest.mark.parametrize("steps", FINE_TUNING.horizons)
def test_the_default_from_trained_weights_has_the_rates_of_the_rows_that_stand_for_it(steps: int) -> None:
    plan = core.Plan(steps)
    state = core.settle(plan, core.begin(plan), True)
    for update in range(steps):
        assert state.share == hand_set(update, round(0.03 * steps), steps, 10.0)
        state = core.advance(plan, state, update + 1, 3.0 - update / steps)


@pytest.mark.parametrize("name", [name for name in TASKS if not name.startswith("tune-")])
def test_the_weights_of_new_tasks_are_new(name: str) -> None:
    torch.manual_seed(0)
    assert not detect(TASKS[name].model()).trained


@pytest.mark.long
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.usefixtures("few_documents")
def test_the_weights_of_fine_tuning_are_trained(lora: bool) -> None:
    """After a twelfth of the steps from which the study's tasks start."""
    task = finetuning.fine_tuning("near", lora=lora, steps=500)
    assert detect(p for p in task.model().parameters() if p.requires_grad).trained
