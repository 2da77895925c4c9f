import pytest
from matplotlib.text import Text

from autowarm.lab.analysis.figures import axes_of, errorbars, paired_figure, smoothed, sweep_figure
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
    figure = paired_figure(summaries)
    figure.draw_without_rendering()
    shown = figure.axes[0].get_title("left")
    assert shown.replace("\n", ": ", 1) == summaries[0].title
    [title] = (text for text in figure.axes[0].findobj(Text) if text.get_text() == shown)
    assert not title.get_parse_math()
    assert "\x1b" not in figure.axes[0].get_title("left")


def test_the_figure_shows_each_seeds_difference_from_the_default_and_their_mean() -> None:
    (axes,) = paired_figure(summarise(ROWS)).axes
    dots = [line.get_ydata().tolist() for line in axes.lines if line.get_marker() == "o"]
    assert dots == [pytest.approx([-0.9, -0.9]), pytest.approx([0.1, -0.1]), pytest.approx([1.1])]
    means = [container[0].get_ydata().tolist() for container in axes.containers]
    assert means == [pytest.approx([-0.9]), pytest.approx([0.0], abs=1e-12)]
    low, high = axes.containers[1][1]  # the caps of the mean that has a spread: its standard error is 0.1
    assert (*low.get_ydata(), *high.get_ydata()) == pytest.approx((-0.1, 0.1))
    assert next(line for line in axes.lines if set(line.get_ydata()) == {0}).get_linestyle() == "--"
    assert [text.get_text() for text in axes.texts] == ["1 of 2 diverged"]
    assert [label.get_text() for label in axes.get_xticklabels() if label.get_fontweight() == "bold"] == ["20"]


def test_a_default_that_diverged_has_dots_where_it_did_not_and_no_mean() -> None:
    rows = [*ROWS[:4], row("adaptive", 9, 0, 2.0), row("adaptive", 9, 1, None)]
    (axes,) = paired_figure(summarise(rows)).axes
    dots = [line.get_ydata().tolist() for line in axes.lines if line.get_marker() == "o"]
    assert dots == [[-1.0], [0.0]]
    assert not axes.containers
    assert axes.get_legend().get_texts()[0].get_text() == "default: 1 of 2 diverged"


def test_without_the_default_the_figure_shows_losses() -> None:
    (axes,) = paired_figure(summarise(ROWS[:4])).axes
    assert axes.containers[0][0].get_ydata().tolist() == pytest.approx([3.1, 2.2])
    assert axes.get_ylabel() == "final validation loss"


def test_runs_that_diverged_are_named_in_a_panel_of_losses_whichever_schedule_they_had() -> None:
    rows = [*ROWS[:4], row("adaptive", 9, 0, None), row("adaptive", 9, 1, 2.0), row("paper", 9, 0, None)]
    rows[0] = row(rows[0]["schedule"], rows[0]["warmup_steps"], rows[0]["seed"], None)
    (axes,) = sweep_figure(summarise(rows)).axes
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend[:2] == ["adaptive: 1 of 2 diverged", "Algorithm 1: 1 of 1 diverged"]
    assert [text.get_text() for text in axes.texts] == ["1 of 2 diverged"]
    (panel,) = axes_of()[1]
    (summary,) = summarise(rows)
    for kind in ("adaptive", "paper"):
        errorbars(panel, [(3.0, getattr(summary, kind))], kind, kind)
    assert [(text.get_text(), text.xy[0]) for text in panel.texts] == [
        ("1 of 2 diverged", 3.0),
        ("1 of 1 diverged", 3.0),
    ]
    assert len({text.xy[1] for text in panel.texts}) == 2  # not on each other
