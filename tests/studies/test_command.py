"""`python -m studies`: every study is known by its name, planned from its rows, and gone on with."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from studies import command
from studies.cells import SEEDS, cells
from studies.plans import STUDIES
from studies.plans.warm_up import CELL_STAGES
from studies.rows import PlannedRow, Rows

from .conftest import made_up

ROOT = Path(__file__).parents[2]
# Those in which not every run of today's default has been made.
UNDER_WAY = ("horizon",)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), ROOT / "docs" / "figures.py"]


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_lists_its_stages(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert command.main([name, "--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(STUDIES[name])
    if name not in UNDER_WAY:
        assert all(re.search(r" (\d+) of +\1 runs made, [\d.]+ CPU-hours", line) for line in lines)


@pytest.mark.long
def test_it_is_run_from_the_root_of_a_checkout_and_names_the_nearest_setting(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "studies", "warm-up", "--cell", "mlp.muon.200.1", "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == 2
    assert "no setting 'mlp.muon.200.1'; the rows name them, such as mlp.muon.200." in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["warmup"], "invalid choice: 'warmup'"),
        (["fresh", "--cell", "a"], "--cell belongs to the study warm-up"),
        (["pages", "--plan"], "--plan belongs to studies; pages has none"),
        (["pages", "--rows", "a"], "--rows belongs to studies; pages has none"),
        (["fresh", "--plan", "--root", "a"], "--root belongs to pages; fresh has none"),
        (["fresh", "--workers", "0"], "must be at least 1, got 0"),
        (["fresh", "--engine", "threads"], "invalid choice: 'threads'"),
    ],
)
def test_a_wrong_word_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = command.main(words)
    except SystemExit as stopped:
        status = int(str(stopped.code))
    assert status == 2
    assert said in capsys.readouterr().err


def test_commands_on_pages_are_understood() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    found = set(re.findall(r"`python -m studies ([^`]+)`", text))
    assert len(found) >= 2
    for line in found - {"NAME"}:
        command._parser().parse_args(shlex.split(line))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs each stage has made, by the formula."""
    counts: list[int] = []

    def make(planned: list[PlannedRow], path: Path, *_: object) -> None:
        counts.append(len(planned))
        Rows([*Rows.load(path), *map(made_up, planned)]).save(path)

    monkeypatch.setattr(command, "make", make)
    return counts


def test_it_makes_the_missing_runs_stage_by_stage(
    made: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    words = ["fresh", "--rows", str(path), "--out", str(tmp_path)]
    assert command.main(words) == 0
    assert len(made) == len(STUDIES["fresh"])
    said = capsys.readouterr().out
    assert f"all {sum(made)} runs are in {path}" in said
    assert command.main(words) == 0
    assert len(made) == len(STUDIES["fresh"])


def test_one_setting_is_made_again_apart_and_compared(
    made: list[int], study: Rows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    study.save(path)
    before = path.read_bytes()
    name = cells(study)[0].name
    assert command.main(["warm-up", "--cell", name, "--rows", str(path), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    count = len(Rows.load(tmp_path / "again.jsonl"))
    assert count == sum(made)
    assert count > len(CELL_STAGES) * len(SEEDS.choice)
    assert f"{count} of {count} runs are equal to the bit" in said
    assert path.read_bytes() == before
