"""The picture of a replay, and the page's escaping."""

import numpy as np
from matplotlib.figure import Figure

from autowarm.lab.analysis import replay as shown
from autowarm.logs import replay
from autowarm.logs.log import make_log

T = 12_000
STEPS = np.arange(1, T + 1)
LOSSES = 2.0 + 6.0 * np.exp(-STEPS / 900)
RATES = 1e-3 * np.minimum(1.0, STEPS / 600)


def test_a_plot_marks_the_end_of_each_warm_up_and_thins_long_lines() -> None:
    actual = replay((STEPS, LOSSES, RATES))
    axes = Figure().subplots(2)
    above, below = actual.plot(axes)
    ends = [line.get_xdata()[0] for line in above.lines[1:]]
    assert ends == [600, actual.recorded.warmup_steps, actual.warmup_steps]
    assert [text.get_text() for text in below.get_legend().get_texts()] == [
        "used: 600 (5.0%)", f"as recorded: {actual.recorded}", f"closed loop: {actual.closed_loop}",
    ]  # fmt: skip
    for line in (above.lines[0], *below.lines):
        assert 3000 < len(line.get_xdata()) <= 4000
    assert all(0 < y <= 1 for line in below.lines[:1] for y in line.get_ydata())


def test_the_page_escapes_a_runs_name() -> None:
    log = make_log("<script>alert(1)</script> $x$", STEPS[:500], LOSSES[:500])
    page = shown.html([replay(log)])
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<h1>&lt;script" in page
