from pathlib import Path
from unittest import mock

import pytest

from autowarm import __version__
from autowarm.lab.commands import main, report


def test_help_and_version_need_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "autowarm COMMAND [options]" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__
    assert main([]) == 2


def test_folders_may_be_in_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "log.csv").write_text("step,loss\n" + "".join(f"{i},{5 / i}\n" for i in range(1, 101)))
    assert main(["replay", "~/log.csv", "--figure=~/figure.png"]) == 0
    assert (tmp_path / "figure.png").exists()


def test_an_interruption_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("autowarm.lab.commands.report.run", mock.Mock(side_effect=KeyboardInterrupt))
    assert main(["report"]) == 130
    message = capsys.readouterr().err
    assert message == "\ninterrupted; the same command continues from here, with what is finished\n"


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
