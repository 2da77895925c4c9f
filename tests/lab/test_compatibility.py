"""What is stored is read, or refused by its schema: samples made by `tests/data/make_samples.py`."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab.analysis.results import SCHEMA as RESULTS_SCHEMA
from autowarm.lab.analysis.results import read_results
from autowarm.lab.commands import main
from autowarm.lab.config import LabError
from autowarm.lab.files import claim
from autowarm.lab.training.checkpoint import SCHEMA, Checkpoints
from autowarm.schedule.state import STATE_VERSION

from .helpers import ALONE, contents

SAMPLES = Path(__file__).parent.parent / "data"
DEMO = SAMPLES / "results-1.json"


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SAMPLES)
    import make_samples

    yield make_samples
    sys.modules.pop("make_samples")


def test_a_stored_checkpoint_is_loaded(samples: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(SAMPLES / f"checkpoints-{SCHEMA}", tmp_path / "run")
    model, optimizer = samples.small()
    rest = Checkpoints(folder, ALONE, "sample").load(model, optimizer)
    assert rest is not None
    assert rest["note"] == 7
    weights = json.loads((folder / "weights.json").read_text())
    assert {name: value.tolist() for name, value in model.state_dict().items()} == weights
    states = optimizer.state_dict()["state"]
    assert all(value.isfinite().all() for state in states.values() for value in state.values())
    assert len(states) == len(weights)


@pytest.mark.parametrize("schema", [1, SCHEMA + 1])
def test_another_checkpoint_is_refused_by_its_number_and_left_alone(samples: Any, schema: int, tmp_path: Path) -> None:
    folder = shutil.copytree(SAMPLES / f"checkpoints-{SCHEMA}", tmp_path / "run")
    manifest = folder / "checkpoint-00000003" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema": schema}))
    before = contents(folder)
    with pytest.raises(LabError, match=rf"checkpoint-00000003 has schema {schema}, this version reads {SCHEMA}"):
        Checkpoints(folder, ALONE, "sample").load(*samples.small())
    assert contents(folder) == before


def test_a_stored_schedulers_state_goes_on_at_the_same_rates(samples: Any) -> None:
    sample = json.loads((SAMPLES / f"scheduler-{STATE_VERSION}.json").read_text())
    assert sample["state"]["version"] == STATE_VERSION
    scheduler = samples.scheduled()
    scheduler.load_state_dict(sample["state"])
    rates = samples.rates(scheduler, samples.AT, samples.STEPS)
    assert rates == pytest.approx(sample["rates"][samples.AT :], rel=1e-12)
    assert scheduler.phase == "decay"


@pytest.mark.long
def test_stored_results_are_read_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claim(tmp_path)
    shutil.copy(DEMO, tmp_path / "results.json")
    results = read_results(tmp_path)
    assert results.document["schema"] == RESULTS_SCHEMA
    assert len(results.summaries) == len(results.document["summary"])
    assert main(["report", str(tmp_path)]) == 0
    assert str(tmp_path / "report.html") in capsys.readouterr().out


def test_a_later_schema_is_named_and_not_read(tmp_path: Path, samples: Any) -> None:
    results = json.loads(DEMO.read_text())
    (tmp_path / "results.json").write_text(json.dumps({**results, "schema": RESULTS_SCHEMA + 1}))
    with pytest.raises(LabError, match=r"has schema 2, this version reads 1"):
        read_results(tmp_path)
    scheduler = samples.scheduled()
    later = STATE_VERSION + 1
    with pytest.raises(ValueError, match=f"state has version {later}, and this autowarm reads version"):
        scheduler.load_state_dict({**scheduler.state_dict(), "version": later})
