"""The judge of a rule: one row a curve, and a summary for each kind."""

import csv
import gzip
import json
import math
import sys
from pathlib import Path

import pytest

from studies import curves


def curve(name: str, **more: object) -> dict[str, object]:
    losses = [2 + 6 * math.exp(-i / 40) for i in range(400)]
    return {"name": name, "family": "small", "optimizer_norm": "sign", "model_shapes": "gpt2", "total_steps": 400,
            "warmup_used": 20, "steps": None, "losses": losses, **more}  # fmt: skip


CURVES = [
    curve("recorded", share_of_peak_every_50=[0.1] + [1.0] * 7),
    curve("assumed", steps=list(range(0, 400, 10)), losses=[2 + 6 * math.exp(-i / 4) for i in range(40)]),
    curve("unknown", family="other", warmup_used=None, optimizer_norm="spectral"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with gzip.open(tmp_path / "curves.jsonl.gz", "wt") as lines:
        lines.writelines(json.dumps(one) + "\n" for one in CURVES)
    return tmp_path / "curves.jsonl.gz"


def judged(file: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[dict[str, str]]:
    out = file.parent / "out.csv"
    monkeypatch.setattr(sys, "argv", ["curves.py", str(file), str(out), *words])
    curves.main()
    with open(out, newline="") as table:
        return list(csv.DictReader(table))


def test_todays_rule_on_each_curve(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = judged(file, monkeypatch)
    assert [row["name"] for row in rows] == ["recorded", "assumed", "unknown"]
    assert [row["rates"] for row in rows] == ["recorded", "assumed", "unknown"]
    assert [row["people"] for row in rows] == ["0.05", "0.05", ""]
    assert all(0 < float(row["recorded"]) <= 0.5 for row in rows)
    assert float(rows[0]["closed loop"]) > 0
    assert rows[2]["closed loop"] == ""
    assert "small" in capsys.readouterr().out


def test_the_rule_under_other_options(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = judged(file, monkeypatch, "--option", "max_warmup=0.25", "--option", "smoothing=0.9")
    assert [row["recorded"] for row in rows] == ["0.25"] * 3
    assert [row["closed loop ended by"] for row in rows] == ["clock", "clock", ""]
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("small") and "recorded" in line]
    assert line.split()[1:] == ["2", "5.0%", "recorded", "25.0%", "100%", "–"]
