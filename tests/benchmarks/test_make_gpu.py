"""`make gpu`: its dry run, how it goes on after failures, and the page it writes."""

import csv
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gpu")


def test_what_fails_is_recorded_keeps_its_results_and_goes_on_there(benchmark: ModuleType, tmp_path: Path) -> None:
    asked = []

    def part(known: dict[str, Any], setting: Any) -> Iterator[tuple[str, Any]]:
        asked.append(dict(known))
        if "first" not in known:
            yield "first", {"ms": 1.0}
            raise RuntimeError("the GPU is lost")
        yield "second", {"ms": 2.0}

    here = {"device": "one"}
    benchmark.measure("steps", part, benchmark.Store(tmp_path, here), True)
    entry = json.loads((tmp_path / "gpu.json").read_text())["parts"]["steps"]
    assert (entry["finished"], list(entry["results"])) == (False, ["first"])
    assert entry["failed"] == "RuntimeError: the GPU is lost"
    benchmark.measure("steps", part, benchmark.Store(tmp_path, here), True)
    entry = json.loads((tmp_path / "gpu.json").read_text())["parts"]["steps"]
    assert asked == [{}, {"first": {"ms": 1.0}}]
    assert (entry["finished"], entry.get("failed"), list(entry["results"])) == (True, None, ["first", "second"])


def test_results_of_another_machine_are_moved_aside(benchmark: ModuleType, tmp_path: Path) -> None:
    store = benchmark.Store(tmp_path, {"device": "one"})
    store.parts["steps"] = {"finished": True, "results": {}}
    store.write()
    assert benchmark.Store(tmp_path, {"device": "one"}).parts == store.parts
    assert benchmark.Store(tmp_path, {"device": "two"}).parts == {}
    assert json.loads((tmp_path / "gpu.other.json").read_text()) == store.content


def test_a_part_that_hangs_is_stopped(benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = tmp_path / "hanging.py"
    hanging.write_text("import time; time.sleep(600)")
    monkeypatch.setattr(benchmark, "__file__", str(hanging))
    assert benchmark.measure_apart("steps", tmp_path, True, 1.0) == "stopped after 1 s"
    hanging.write_text("raise SystemExit(3)")
    assert benchmark.measure_apart("steps", tmp_path, True, 60.0) == "ended with code 3"


def test_without_a_gpu_it_says_so_and_measures_nothing(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="no GPU is at hand; `make gpu DRY=1` tries everything without one"):
        benchmark.main()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_dry_run_finishes_every_part_and_makes_up_no_number_of_a_gpu(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--dry-run", "--out", str(tmp_path)])
    benchmark.main()
    stored = json.loads((tmp_path / "gpu.json").read_text())
    assert {name: entry.get("failed") for name, entry in stored["parts"].items()} == dict.fromkeys(benchmark.PARTS)
    assert "done" in capsys.readouterr().out.splitlines()[-1]
    parts = {name: entry["results"] for name, entry in stored["parts"].items()}
    assert all(of["failed"] == 0 < of["passed"] for of in parts["tests"].values())
    for label, of in parts["steps"].items():
        if "missing" in of:
            assert label in ("tiny Muon, captured", "tiny dion's Muon"), of
        else:
            assert of["host_ms"] is None
            assert of["launches"] is None
    assert all(of["mfu"] is None and of["peak_bytes"] is None for of in parts["llama"].values())
    # A second call has nothing left to do.
    benchmark.main()
    assert capsys.readouterr().out.splitlines() == [f"{tmp_path / 'gpu.json'}: done"]
    # The tables take all of it.
    tables = benchmark.gpu_page.tables(stored)
    assert len(tables) == len(benchmark.PARTS)
    assert "not finished" not in str(tables)


def test_the_page_shows_the_stored_run(benchmark: ModuleType) -> None:
    stored = json.loads(benchmark.gpu_page.STORED.read_text(encoding="utf-8"))
    page = " ".join((ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8").split())
    for name, rows in benchmark.gpu_page.tables(stored).items():
        with open(ROOT / "docs" / "data" / "tables" / name, newline="", encoding="utf-8") as file:
            assert list(csv.reader(file)) == rows
        assert f"data/tables/{name}" in page


def test_the_tables_show_what_failed_and_what_is_missing(benchmark: ModuleType) -> None:
    tests = {
        name: {"passed": passed, "failed": failed, "skipped": 0}
        for name, passed, failed in (("test_a_step", 2, 1), ("test_a_graph", 3, 0))
    }
    parts = {
        "tests": {"finished": True, "results": tests},
        "steps": {"finished": False, "failed": "stopped after 330 s", "results": {}},
    }
    tables = benchmark.gpu_page.tables({"parts": parts})
    assert tables["gpu-tests.csv"][1:] == [["all", "5", "1", "0"], ["a step", "2", "1", "0"]]
    assert tables["gpu-steps.csv"][1:] == [["not finished: stopped after 330 s", *[""] * 5]]
    assert [rows[-1][0] for rows in tables.values()].count("not finished: not yet measured") == 1
