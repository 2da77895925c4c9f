from pathlib import Path

import pytest

from autowarm.lab.commands import main
from autowarm.lab.paper.gallery import GALLERY


@pytest.mark.long
def test_figures_are_listed_drawn_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", "--list"]) == 0
    listed = capsys.readouterr().out
    assert [name for name in GALLERY if name not in listed] == []
    assert main(["figure", "eta-behaviour", "--figures", str(tmp_path)]) == 0
    assert (tmp_path / "eta-behaviour.svg").exists()
    assert main(["figure", "eta-behavior"]) == 2
    assert "did you mean 'eta-behaviour'" in capsys.readouterr().err
    assert main(["figure"]) == 2
