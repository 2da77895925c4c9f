"""`autowarm.replay`: what it takes, what it says, what it refuses."""

from pathlib import Path

import numpy as np
import pytest

import autowarm
from autowarm.logs import LogError, read, replay
from autowarm.logs.log import make_log

T = 600
STEPS = np.arange(1, T + 1)
LOSSES = 0.2 + 7.8 * np.exp(-STEPS / 40)  # to a fortieth: past a twentieth, the default's peak in the sign geometry
RATES = 3e-4 * np.minimum(1.0, STEPS / 90)
TEXT = "step,loss,lr\n" + "".join(f"{s},{x!r},{r!r}\n" for s, x, r in zip(STEPS.tolist(), LOSSES.tolist(), RATES.tolist(), strict=True))  # fmt: skip # noqa: E501


def test_a_path_a_log_and_arrays_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(TEXT)
    result = [autowarm.replay(path), replay(str(path)), replay(read(path)[0]), replay((STEPS, LOSSES, RATES))]
    for one in result:
        assert one.closed_loop is not None
        assert (one.log.total_steps, one.used_warmup, one.log.interpolated, one.notes) == (T, 90, False, ())
        assert one.closed_loop.rates.tolist() == result[0].closed_loop.rates.tolist()  # type: ignore[union-attr]
        assert (one.warmup_steps, one.ended_by) == (one.closed_loop.warmup_steps, one.closed_loop.ended_by)
        assert one.ended_by == "loss"
        assert one.reading.warmup_share == one.warmup_steps / T  # type: ignore[operator]
    text = repr(result[0])
    assert "600 updates" in text
    assert "read as step, loss, lr; 600 of 600 updates\n  Your warm-up: 90 updates (15.0%). Ours would have" in text
    assert f"closed loop          {result[0].warmup_steps} (" in text


def test_without_rates_there_is_one_reading_and_a_note() -> None:
    result = replay((STEPS, LOSSES))
    assert (result.closed_loop, result.used_warmup) == (None, None)
    assert result.reading is result.recorded
    assert result.notes == ("the log has no rates (lr= names them), so there is no closed loop",)
    assert "not in the log" in repr(result)


def test_options_reach_the_scheduler() -> None:
    early = replay((STEPS, LOSSES), max_warmup=30)
    assert (early.recorded.ended_by, early.warmup_steps) == ("clock", 30)
    assert replay((STEPS, LOSSES), total_steps=2 * T).log.total_steps == 2 * T
    ends = [replay((STEPS, LOSSES), geometry=name).warmup_steps for name in ("spectral", "frobenius", "sign")]
    assert ends[0] == ends[1] < ends[2] == replay((STEPS, LOSSES)).warmup_steps  # a third of the gap, or a twentieth
    with pytest.raises(ValueError, match="geometry is one of sign, spectral, frobenius, got 'spectrl'"):
        replay((STEPS, LOSSES), geometry="spectrl")
    late = replay((STEPS, LOSSES), target_loss=0.1)
    assert late.recorded.losses.tolist() == LOSSES.tolist()
    assert late.warmup_steps != replay((STEPS, LOSSES)).warmup_steps


def test_one_of_several_runs_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{run},{s},{x * scale}" for run, scale in (("blue", 1.0), ("red", 2.0)) for s, x in zip(STEPS, LOSSES, strict=True)]  # fmt: skip # noqa: E501
    path.write_text("\n".join(["run,step,loss", *rows]))
    assert replay(path, run=f"{tmp_path.name}/log.csv: blue").log.losses[0] == pytest.approx(LOSSES[0])
    assert replay(path, run="red").log.losses[0] == pytest.approx(2 * LOSSES[0])
    with pytest.raises(LogError, match=r"several runs; name one with run= .*: '.*: blue', '.*: red'"):
        replay(path)
    with pytest.raises(LogError, match="no runs with 'green' in their names"):
        replay(path, run="green")


def test_what_the_scheduler_warns_about_is_noted() -> None:
    losses = LOSSES.copy()
    losses[5] = np.nan
    result = replay((STEPS, losses, RATES))
    assert any("the loss was NaN or infinite at update 6" in note for note in result.notes)
    assert np.isfinite(result.closed_loop.losses).all()  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["run", "loss", "step", "lr"])
def test_options_of_a_file_are_refused_with_what_is_none(name: str) -> None:
    log = make_log("a", STEPS, LOSSES)
    for given, instead in (((STEPS, LOSSES), "arrays: pass the steps"), (log, "a Log: pass its file instead$")):
        with pytest.raises(ValueError, match=f"^{name}= cannot be used with {instead}"):
            replay(given, **{name: "a"})
    with pytest.raises(ValueError, match="^total_steps=, first_loss= cannot be used with a Log"):
        replay(log, total_steps=2 * T, first_loss=9.0)
