import json
import math
from pathlib import Path

import numpy as np
import pytest

from autowarm import AdaptiveWarmup, Muon
from autowarm.lab import calibration as module
from autowarm.lab.calibration import calibration
from autowarm.lab.commands import main
from autowarm.lab.config import CalibrateConfig, ModelConfig
from autowarm.lab.tasks.models import llama

from .helpers import printed

FUSED = "50304x768, 12*2304x768, 12*768x768, 24*2048x768, 12*768x2048"
SPLIT = "50304x768, 48*768x768, 24*2048x768, 12*768x2048"
PAPER = {"first_loss": 10.98, "target_loss": 3.3, "div": 100.0}


@pytest.mark.parametrize(
    ("shapes", "optimizer", "kappa"),
    [
        (FUSED, "muon", 46848),
        (FUSED, "lion", 123568128),
        (FUSED, "normsgd", 61),
        (SPLIT, "muon", 65280),
        (SPLIT, "normsgd", 85),
    ],
)
def test_kappa_of_the_papers_model(shapes: str, optimizer: str, kappa: float) -> None:
    assert calibration(CalibrateConfig(shapes=shapes, optimizer=optimizer, **PAPER)).kappa == kappa


def test_the_papers_switch_and_the_curves_meet_there() -> None:
    found = calibration(CalibrateConfig(shapes=FUSED, **PAPER))
    assert found.profile.peak_gap == pytest.approx(2.470, abs=5e-4)
    assert found.switch_loss == pytest.approx(5.770, abs=5e-4)
    assert found.width == pytest.approx(math.sqrt(1e3 / 46848))
    assert found.minima[0] == pytest.approx(found.profile.peak_gap)
    losses, curves = module._curves(found)
    at = abs(losses - found.switch_loss).argmin()
    assert [curves[name][at] for name in ("η(Δ)", "target", "weight")] == pytest.approx([1, 1, 1], abs=1e-3)
    assert curves["target"][-1] == pytest.approx(1 / 100)
    assert np.all(curves["η(Δ)"] <= 1)


def test_a_second_minimum_is_told_of() -> None:
    # Where σ_F² = 2500 the objective has two minima of nearly one height.
    assert "a second minimum" in printed(
        module.table(calibration(CalibrateConfig(FUSED, sigma_f2=2.5e3, **PAPER))), 120
    )


def test_it_is_what_training_would_use() -> None:
    opt = Muon.from_model(llama(ModelConfig(vocab_size=512), seed=0), lr=1e-2)
    shapes = "512x64, 8*64x64, 4*176x64, 2*64x176"
    calibrated = AdaptiveWarmup(opt, 100, calibration="spectral")
    calibrated.step(6.25)
    assert calibration(CalibrateConfig(shapes=shapes, lr=1e-2, first_loss=6.25)).profile == calibrated.profile
    paper = AdaptiveWarmup.paper(opt, 100, target_loss=3.0)
    paper.step(6.25)
    config = CalibrateConfig(shapes=shapes, lr=1e-2, first_loss=6.25, target_loss=3.0, div=100)
    assert calibration(config).profile == paper.profile


def test_the_command_prints_draws_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["calibrate", "--kappa", "46848", "--first_loss", "10.98", "--target_loss", "3.3"]
    assert main([*words, "--div", "100", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "loss 5.77" in text
    assert "\x1b" not in text, "a pipe gets no colours"
    for name in ("calibration.png", "calibration.svg", "calibration.json"):
        assert str(tmp_path / name) in text
        assert (tmp_path / name).stat().st_size > 0
    assert json.loads((tmp_path / "calibration.json").read_text())["switch_loss"] == pytest.approx(5.770, abs=5e-4)


def test_a_peak_of_ones_own_and_a_geometry_by_name() -> None:
    config = CalibrateConfig(shapes="64x16", geometry="rows", first_loss=4, target_loss=1, peak_gap=2)
    assert calibration(config).kappa == 64
    assert "given" in printed(module.table(calibration(config)), 100)
