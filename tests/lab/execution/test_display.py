import io

import pytest
from rich.console import Console

from autowarm.lab.execution import display as module
from autowarm.lab.execution.display import Display

DONE = {"diverged": False, "val_loss": 2.0, "warmup_steps": 4, "seconds": 3.0}


def test_without_a_terminal_each_finished_run_is_one_line() -> None:
    text = io.StringIO()
    display = Display(Console(file=text, force_terminal=False, width=40))
    with display.progress:
        display.begin([("first", 10), ("second", 10)], done=1, workers=2)
        display.update("first", 5, 3.0, 0.1)
        display.finish("first", DONE)
        display.finish("second", {**DONE, "diverged": True, "val_loss": None})
    lines = text.getvalue().splitlines()
    assert lines[0] == "3 runs, 1 already finished; 2 side by side"
    assert lines[1].startswith("[2/3] first  val loss 2.0000  warm-up 4  3 s  ETA")
    assert lines[2].startswith("[3/3] second  diverged")


def test_in_a_terminal_a_bar_shows_steps_loss_rate_and_eta() -> None:
    text = io.StringIO()
    display = Display(Console(file=text, force_terminal=True, width=120))
    with display.progress:
        display.begin([("first", 10)], done=0, workers=1)
        display.update("first", 5, 3.25, 0.125)
        display.progress.refresh()
    for part in ("first", "5/10", "3.250", "1.25e-01", "ETA", "Ctrl-C"):
        assert part in text.getvalue()


def test_the_eta_counts_only_steps_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    display = Display(Console(file=(text := io.StringIO()), width=200))
    display.begin([("resumed", 100), ("waiting", 100)], done=0, workers=1)
    assert display.eta() == "–"
    for step in (50, 60, 70):  # 10 steps in 10 s, 130 to go
        display.update("resumed", step, 1.0, 1.0)
        now += 10
    assert display.eta() == "2:10"
    assert "resumed: loss 1.000  rate 1.00e+00  ETA" in text.getvalue()  # after 20 seconds without a line
    display.finish("resumed", DONE)


@pytest.mark.parametrize("name", ["[/red]", r"$_{\foo}$", "\x1b[31mred"])
@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_of_any_name_is_shown_as_it_is_written(name: str, terminal: bool) -> None:
    text = io.StringIO()
    display = Display(Console(file=text, force_terminal=terminal, width=120, color_system=None))
    with display.progress:
        display.begin([(name, 10), ("other", 10)], done=0, workers=1)
        display.update(name, 5, 3.25, 0.125)
        display.progress.refresh()
        display.finish(name, DONE)
        display.fail("other", f"an error about {name}")
    assert text.getvalue().count(name.replace("\x1b", "")) >= 2
    assert "\x1b[31m" not in text.getvalue()
