"""The Δ' of the authors' quadrature, as the figure `authors-switch` draws it."""

import runpy
from pathlib import Path

import pytest

from autowarm.schedule import calibrate

authors_peak_gap = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "authors.py"))["authors_peak_gap"]
MUON, LION = {"lr": 1e-3, "div": 100.0, "kappa": 46_848}, {"lr": 1e-3, "div": 100.0, "kappa": 123_568_128}


@pytest.mark.parametrize(
    ("first", "target", "kind", "peak_gap"),
    [(10.95, 3.3, MUON, 4.888), (10.98, 3.3, MUON, 3.188), (10.99, 3.3, MUON, 3.776), (11.0, 3.3, MUON, 5.027),
     (10.98, 3.2, MUON, 5.515), (10.98, 3.4, LION, 0.374)],
)  # fmt: skip
def test_it_is_theirs_and_jumps_with_the_first_loss(
    first: float, target: float, kind: dict[str, float], peak_gap: float
) -> None:
    assert authors_peak_gap(first - target, **kind) == pytest.approx(peak_gap, abs=5e-4)


def test_it_depends_on_what_the_minimum_does_not() -> None:
    theirs = {authors_peak_gap(7.68, **(MUON | {"lr": lr})) for lr in (1e-3, 1e-2)}
    ours = {calibrate(7.68, **(MUON | {"lr": lr})).peak_gap for lr in (1e-3, 1e-2)}
    assert (len(theirs), len(ours)) == (2, 1)
