"""`autowarm replay`: the table, the files it writes, and its messages."""

import json
import math
from pathlib import Path

import pytest

from autowarm import logs
from autowarm.lab.commands import main

T = 400


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [(s, 2 + 6 * math.exp(-s / 40), 1e-3 * min(1.0, s / 50)) for s in range(1, T + 1)]
    (tmp_path / "whole.csv").write_text("step,loss,lr\n" + "".join(f"{s},{x!r},{r!r}\n" for s, x, r in rows))
    (tmp_path / "sparse.txt").write_text("step loss\n" + "".join(f"{s} {x}\n" for s, x, _ in rows[9::10]))
    (tmp_path / "two.csv").write_text("run,step,loss\n" + "".join(f"a,{s},{x}\nb,{s},{2 * x}\n" for s, x, _ in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def message(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["replay", *words]) == 0
    return capsys.readouterr().out


def test_a_row_and_notes_for_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = message(capsys, "whole.csv", "sparse.txt", "two.csv")
    whole = logs.replay("whole.csv")
    [row] = [line for line in text.splitlines() if line.startswith("whole.csv ")]
    assert "50 (12.5%)" in row
    assert f"{whole.recorded.warmup_steps} ({100 * whole.recorded.warmup_share:.1f}%), loss" in row  # type: ignore[operator]
    assert f"{whole.warmup_steps} (" in row
    assert f"whole.csv: read as step, loss, lr; 400 of 400 updates\n{whole.answer}\n" in text
    assert text.count("the log has no rates") == 3
    assert "note: sparse.txt: the log has no rates" in text
    assert "two.csv: b" in text


def test_json_holds_both_readings(capsys: pytest.CaptureFixture[str]) -> None:
    [whole, sparse] = json.loads(message(capsys, "whole.csv", "sparse.txt", "--json"))
    read = logs.replay("whole.csv")
    recorded, looped = ({"warmup_steps": one.warmup_steps, "share": one.warmup_share, "ended_by": one.ended_by}
                        for one in (read.recorded, read.reading))  # fmt: skip
    assert whole == {
        "name": "whole.csv", "total_steps": T, "used_warmup": 50, "used_at_most": False, "interpolated": False,
        "notes": [], "read_as": read.log.chosen, "answer": read.answer, "recorded": recorded, "closed_loop": looped,
    }  # fmt: skip
    assert (sparse["closed_loop"], sparse["interpolated"]) == (None, True)


def test_options_reach_the_log_and_the_scheduler(capsys: pytest.CaptureFixture[str]) -> None:
    [one] = json.loads(message(capsys, "two.csv", "--run", "b", "--total-steps", "800", "--max-warmup", "20", "--json"))
    assert (one["name"], one["total_steps"], one["recorded"]["warmup_steps"]) == ("two.csv: b", 800, 20)
    [first] = json.loads(message(capsys, "sparse.txt", "--first-loss", "11", "--json"))
    assert not any("begins" in note for note in first["notes"])
    [share] = json.loads(message(capsys, "whole.csv", "--max-warmup", "0.1", "--json"))
    assert share["recorded"]["warmup_steps"] == 40
    [tuned] = json.loads(message(capsys, "whole.csv", "--trained", "--json"))
    assert tuned["recorded"]["warmup_steps"] == 12


@pytest.mark.long
def test_a_figure_and_a_page_are_written_and_the_page_needs_nothing_else(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = message(capsys, "whole.csv", "two.csv", "--figure", "out/replay.png", "--html", "replay.html")
    assert text.splitlines()[-2:] == ["out/replay.png", "replay.html"]
    assert (files / "out" / "replay.png").read_bytes().startswith(b"\x89PNG")
    page = (files / "replay.html").read_text()
    assert page.count('src="data:image/svg+xml;base64,') == 3
    assert "http" not in page.replace("http-equiv", "")
    for name in ("whole.csv", "two.csv: a", "two.csv: b", "50 (12.5%)"):
        assert name in page
