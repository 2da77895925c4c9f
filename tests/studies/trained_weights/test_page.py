"""What the pages say of trained weights, against the stored rows."""

import csv
import statistics
from collections import Counter
from pathlib import Path

import pytest
import torch

from autowarm.pretrained import detect
from studies.cells import DEFAULT
from studies.pages.tables import tuned_settings
from studies.regret import excess, judge
from studies.rows import Rows
from studies.tasks import TASKS, finetuning

DOCS = Path(__file__).parents[3] / "docs"


def text_of(page: str) -> str:
    return " ".join((DOCS / page).read_text().split())


def test_the_counts_of_models_are_those_of_the_table() -> None:
    with open(DOCS / "data" / "tables" / "trained-weights.csv") as file:
        rows = list(csv.DictReader(file))
    shipped = [row for row in rows if row["part"] in ("timm", "torchvision", "transformers")]
    assert {row["truth"] for row in shipped} == {row["says"] for row in shipped} == {"new"}
    tasks = {"mlp", "text", "convnet", "vit", "gpt"}
    after = {n: [row for row in rows if row["part"] in tasks and row["updates"] == str(n)] for n in (50, 200, 1000)}
    missed = {n: sum(row["says"] == "new" for row in some) for n, some in after.items()}
    assert [len(some) for some in after.values()] == [30, 30, 30]
    said = (
        f"No new model of {len(shipped)}](data/tables/trained-weights.csv) was taken for trained. Of 30 models trained "
    )
    assert (missed[200], missed[50], missed[1000]) == (1, 14, 0)
    packages = [row for row in rows if row["part"] == "shipped"]
    assert (sum(row["says"] == "new" for row in packages), len(packages)) == (1, 11)
    words = "for 200 updates it missed one, of 30 trained for 50, 14, and of 11 weights that packages ship, one."
    assert said + words in text_of("how-it-works.md")


def test_the_default_warms_up_for_a_tenth_and_is_near_the_best() -> None:
    rows = Rows.load(DOCS / "data" / "studies" / "fine-tuning.jsonl")
    ours = [row for row in rows if row["schedule"] == DEFAULT]
    assert all(row["warmup_steps"] == row["cell"]["steps"] // 10 for row in ours)
    assert Counter(row["ended_by"] for row in ours) == {"clock": len(ours)}
    costs = [excess(rows, setting)[DEFAULT] for setting in tuned_settings(rows)]
    within = sum(cost.mean <= max(0.5, 2 * (cost.stderr or 0.0)) for cost in costs)
    learnt = [found for setting in tuned_settings(rows) if (found := judge(rows, setting)) is not None]
    behind = [one.behind.mean for one in learnt if one.behind is not None]
    for sentence in (
        f"recognised the trained weights in all {len(ours)} runs, and the clock ended every warm-up",
        f"two standard errors above the best hand-set warm-up in {within} of {len(costs)} settings. In the "
        f"{len(behind)} in which the best lowers the loss by 3% or more, the default costs "
        f"{statistics.fmean(behind):.1f}% of the progress in the mean and {max(behind):.1f}% at worst.",
    ):
        assert sentence in text_of("evidence.md")


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
