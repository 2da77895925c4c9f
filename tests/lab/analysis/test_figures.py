import pytest
from matplotlib.text import Text

from autowarm.lab.analysis.figures import smoothed, sweep_figure
from autowarm.lab.analysis.summary import summarise

from ..helpers import CELL, ROWS, row

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
    shown = figure.axes[0].get_title("left")
    assert shown.replace("\n", ": ", 1) == summaries[0].title
    [title] = (text for text in figure.axes[0].findobj(Text) if text.get_text() == shown)
    assert not title.get_parse_math()
    assert "\x1b" not in figure.axes[0].get_title("left")


def test_the_figure_shows_the_losses_and_the_default_as_a_line() -> None:
    summaries = summarise(ROWS)
    (axes,) = sweep_figure(summaries).axes
    assert axes.containers[0][0].get_ydata().tolist() == pytest.approx([3.1, 2.2])
    ours = summaries[0].adaptive
    assert ours is not None
    (line,) = (line for line in axes.lines if str(line.get_label()).startswith("default"))
    assert (set(line.get_ydata()), line.get_linestyle()) == ({ours.val_loss}, "--")
    assert [text.get_text() for text in axes.texts] == ["1 of 2 diverged"]


def test_runs_that_diverged_are_named_in_a_panel_of_losses_whichever_schedule_they_had() -> None:
    rows = [*ROWS[:4], row("adaptive", 9, 0, None), row("adaptive", 9, 1, 2.0), row("paper", 9, 0, None)]
    rows[0] = row(rows[0]["schedule"], rows[0]["warmup_steps"], rows[0]["seed"], None)
    (axes,) = sweep_figure(summarise(rows)).axes
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend[:2] == ["default: 1 of 2 diverged", "Algorithm 1: 1 of 1 diverged"]
    assert [text.get_text() for text in axes.texts] == ["1 of 2 diverged"]
