"""The report as a browser draws it."""

import shutil
import subprocess
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from autowarm._torch.plotting import BLUE, ORANGE
from autowarm.lab.analysis import report

from ..helpers import leave_metrics, stored

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_a_screenshot_shows_the_pictures_and_nothing_is_cut_off(tmp_path: Path) -> None:
    results = stored(tmp_path / "results", about="A heading")
    leave_metrics(tmp_path / "results")
    page, picture = report.make(results)[-1], tmp_path / "page.png"
    words = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile",
             "--hide-scrollbars", "--window-size=1280,3000", f"--screenshot={picture}", f"file://{page}"]  # fmt: skip
    subprocess.run(words, capture_output=True, timeout=600, check=True)  # type: ignore[arg-type]
    pixels = matplotlib.image.imread(picture)[..., :3]
    assert pixels.shape[1] == 1280
    assert np.ptp(pixels[:, -30:], axis=(0, 1)).max() < 0.02  # the margin is empty: nothing is wider than the page
    for colour in (ORANGE, BLUE):  # of the curves
        assert (abs(pixels - to_rgb(colour)).max(axis=2) < 0.02).sum() > 100
