"""What the pages say of trained weights, against the stored rows."""

import csv
import json
import statistics
from collections import Counter
from pathlib import Path

import pytest
import torch

from autowarm.pretrained import detect
from studies.plans.transfer import CHANCE
from studies.tasks import TASKS

DOCS = Path(__file__).parent.parent.parent / "docs"


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
        f"No new model of {len(shipped)}](data/tables/trained-weights.csv) was taken for trained. After 200 updates it "
    )
    assert (missed[200], missed[50], missed[1000]) == (1, 14, 0)
    assert said + "missed one of 30 trained ones, after 50 updates 14." in text_of("how-it-works.md")


def test_the_default_takes_the_way_of_the_runs_that_were_told() -> None:
    def losses(file: str, schedule: str) -> dict[tuple, dict]:
        with open(DOCS / "data" / "studies" / file) as lines:
            rows = [json.loads(line) for line in lines]
        return {(*row["cell"].values(), row["seed"]): row for row in rows if row["schedule"] == schedule}

    told, untold = losses("fine-tuning.jsonl", CHANCE), losses("trained.jsonl", "default")
    assert all(row["warmup_steps"] == row["cell"]["steps"] // 10 for row in untold.values())
    assert Counter(row["ended_by"] for row in untold.values()) == {"clock": len(untold)}
    apart = statistics.mean(100 * (row["val_loss"] / told[key]["val_loss"] - 1) for key, row in untold.items())
    longest = max(row["cell"]["steps"] for row in untold.values())
    said = text_of("evidence.md")
    assert (
        f"In {len(untold)} runs of up to {longest} updates that were told nothing, every warm-up took a tenth" in said
    )
    assert f"the losses are {apart:.3f} % above those of the told runs on average" in said


@pytest.mark.parametrize("name", [name for name in TASKS if not name.startswith("tune-")])
def test_the_weights_of_new_tasks_are_new(name: str) -> None:
    torch.manual_seed(0)
    assert not detect(TASKS[name].build()).trained
    assert "and those of none of the other tasks of these pages" in text_of("evidence.md")


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in TASKS if name.startswith("tune-")])
def test_the_weights_of_fine_tuning_are_trained(name: str) -> None:
    trained = (p for p in TASKS[name].build().parameters() if p.requires_grad)
    assert detect(trained).trained
