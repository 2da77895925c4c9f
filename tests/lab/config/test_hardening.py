"""What confuses the reader of configs, or what nobody foresaw: one line, and status 2 or 1."""

from pathlib import Path

import pytest

from autowarm.lab.commands import main, report

HOSTILE = {
    "deep brackets": "steps: " + "[" * 600,
    "deep lists": "steps: " + "[" * 600 + "]" * 600,
    "deep mappings": "rates: " + "{a: " * 600 + "1" + "}" * 600,
    "refers to itself": "rates: &r {muon: *r}",
    "refers to itself in a list": "warmups: &w [0, *w]",
    "seed of 2⁶⁴": f"seeds: [{2**64}]",
    "a date": "run: {steps: 2026-11-21}",
    "a key that is no text": "? [1, 2]\n: 3",
    "a number without end": "run: {steps: " + "9" * 5000 + "}",
    "a tag": "run: !!python/object/apply:os.system [true]",
    "a null byte": "run: \0",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_a_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text(HOSTILE[name], encoding="utf-8")
    for command in ("compare", "train", "sweep"):
        assert main([command, "--config", str(path)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("autowarm: ")
        assert said.count("\n") == 1
        assert len(said) < 1500


def test_what_nobody_foresaw_is_a_line_with_the_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def surprise(words: list[str]) -> int:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(report, "run", surprise)
    assert main(["report"]) == 1
    (log,) = tmp_path.glob("autowarm-*.log")
    assert capsys.readouterr().err == f"autowarm: RuntimeError: first line (traceback in {log})\n"
    assert "second line" in log.read_text()
    assert "in surprise" in log.read_text()


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "LOCAL_RANK"])
def test_a_variable_of_torchrun_that_is_no_number(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, "abc")
    assert main(["train", "--steps", "2"]) == 2
    assert f"{name} must be a number, got 'abc'" in capsys.readouterr().err
