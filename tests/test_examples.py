"""Every example runs, with fewer steps."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_smoothness(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "smoothness.py"))["main"](60)
    printed = capsys.readouterr().out
    assert "12 points" in printed or "10 points" in printed
    assert "K2" in printed
    assert (tmp_path / "smoothness.png").stat().st_size > 1000
