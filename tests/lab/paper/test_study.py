import numpy as np
import pytest

from autowarm.lab.paper.study import plot_study, study
from autowarm.smoothness import Point


def points(curve, *, scale=0.3, n=400, last=0.3, first=8.0):
    gaps = np.geomspace(first, last, n)
    values = curve(gaps) + scale * np.random.default_rng(0).normal(size=n)
    numbered = enumerate(zip(gaps, values, strict=True))
    return [Point(t, 1e-3, 3.0 + gap, 0.0, k, 1.0, 0.0, 0.0, 1.0) for t, (gap, k) in numbered]


@pytest.mark.parametrize(
    ("curve", "noise", "words"),
    [
        (lambda x: 3 + x**2, 0.3, ["favour a quadratic over a line:", "as assumed"]),
        (lambda x: 3 + 2 * x + 0.02 * x**2, 0.05, ["favour a quadratic over a line, though by little"]),
        (lambda x: 3 + 2 * x, 0.3, ["not established", "as assumed"]),
        (lambda x: 9 - x, 0.3, ["not established", "the opposite of the assumption"]),
        (lambda x: 3 + 4 * x - 0.2 * x**2, 0.3, ["bends the other way", "against"]),
        (lambda x: 9 - 4 * x + 0.7 * x**2, 0.3, ["favour a quadratic", "falls with the gap only above"]),
        (lambda x: 3 + 0 * x, 0.3, ["explains little", "not established"]),
        (lambda x: 3 + 0 * x, 0.0, ["nothing for the gap to explain"]),
    ],
)
def test_the_verdict_says_what_the_data_are(curve, noise, words):
    found = study(points(curve, scale=noise), target_loss=3.0)
    for text in words:
        assert text in found.verdict


def test_what_is_kept():
    run = points(lambda x: 3 + x)
    assert len(study(run, 3.0, trim=None).gaps) == 400
    trimmed = study(run, 3.0)
    assert (len(trimmed.gaps), trimmed.dropped) == (392, 8)
    windowed = study(run, 3.0, trim=None, window=(100, 150))
    assert windowed.steps.tolist() == list(range(100, 150))
    assert windowed.dropped == 350
    with pytest.raises(ValueError, match="3 of 400 points are left"):
        study(run, 3.0, trim=None, window=(0, 3))
    still = Point(400, 0.0, 3.1, 3.1, 0.0, 0.0, 0.0, 0.0, 0.0)
    burst = Point(401, 1e-3, float("nan"), float("nan"), float("nan"), 1.0, 0.0, 0.0, 1.0)
    assert study([*run, still, burst], 3.0, trim=None).dropped == 2
    assert study(run, target_loss=4.0).power is None  # losses below the target leave no free exponent


@pytest.mark.parametrize(
    ("curve", "scale"), [(lambda x: 3 + x, "linear"), (lambda x: 3 + x**2, "linear"), (lambda x: 20 + x**4, "log")]
)
def test_the_picture_shows_points_and_fits_and_a_wide_range_on_a_logarithmic_axis(curve, scale):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    found = study(points(curve), 3.0, trim=None)
    assert all(name in str(found) for name in ("quadratic", "linear", "constant", "power", "R²", "f* = 3"))
    axes = plot_study(found, ax=figure.subplots())
    offsets = axes.collections[0].get_offsets()[:, 1]
    assert len(offsets) == len(found.gaps)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [label.split(",")[0] for label in labels] == ["quadratic", "linear"]
    low, high = axes.get_ylim()
    for label, line in zip(labels, axes.lines, strict=True):
        assert label.endswith(", leaves the axis") == (line.get_ydata().min() < low)
    assert scale == "linear" or any("leaves" in label for label in labels)
    assert axes.get_yscale() == scale
    assert low < offsets.min() < offsets.max() < high
