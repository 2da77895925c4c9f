import pytest

from autowarm.lab.analysis.figures import smoothed, sweep_figure
from autowarm.lab.analysis.summary import summarise

from ..helpers import CELL, ROWS

NAMES = ["[/red]", r"$_{\foo}$", "\x1b[31mred", "a$b", "%s {0}", "<b>", "^_{", "日本"]


def test_smoothing_neither_lags_nor_invents() -> None:
    line = [float(i) for i in range(200)]
    assert smoothed(line) == pytest.approx(line)
    assert smoothed([]) == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:Glyph")  # not every font has every letter
def test_a_cell_of_any_name_is_drawn_as_it_is_written(name: str) -> None:
    summaries = summarise([{**one, "cell": {"name": name, **CELL}} for one in ROWS])
    figure = sweep_figure(summaries)
    figure.draw_without_rendering()
    shown = figure.axes[0].get_title("left").replace("\n", ": ", 1)
    assert shown.replace(r"\$", "$").replace("\\\\", "\\") == summaries[0].title
    assert "\x1b" not in figure.axes[0].get_title("left")
