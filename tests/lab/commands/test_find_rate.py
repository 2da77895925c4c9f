import json
from pathlib import Path

import pytest

from autowarm.lab.commands import main

from ..helpers import LINE


@pytest.mark.parametrize(
    ("code", "words", "optimizer"),
    [
        ("", [], "plain"), ("", ["--optimizer", "lion"], "lion"), ("", ["--optimizer", "SGD"], "SGD"),
        ("    defaults = {'rates': {'lion': [0.1]}}\n", [], "lion"), ("    optimizers = {}\n", [], "adamw"),
    ],
)  # fmt: skip
def test_a_task_of_ones_own_gets_a_rate_and_a_picture_of_its_own_optimizer(
    code: str, words: list[str], optimizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "line.py").write_text(LINE + code)
    words = ["find-rate", "--task", f"{tmp_path}/line.py:Line", *words]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    numbers = json.loads((tmp_path / "out" / "find-rate.json").read_text())
    assert (
        f"suggestion  {numbers['suggestion']:.2g} for {optimizer} and a run of 300 updates" in text
    )  # as `autowarm compare` takes
    assert numbers["interval"][0] < numbers["suggestion"] < numbers["interval"][1]
    assert 1e-4 < numbers["suggestion"] < 3
    assert (tmp_path / "out" / "find-rate.png").stat().st_size > 1000


def test_a_small_task_of_the_labs_and_a_search_that_cannot_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["find-rate", "--task", "mlp", "--optimizer", "lion", "--highest", "1e-4", "--steps", "20"]
    assert main([*words, "--out", str(tmp_path)]) == 1
    assert "no rate can be suggested" in capsys.readouterr().out
    assert json.loads((tmp_path / "find-rate.json").read_text())["suggestion"] is None
