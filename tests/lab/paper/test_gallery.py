import runpy
from pathlib import Path

import pytest

from autowarm.lab.paper.gallery import GALLERY, Sources

ROOT = Path(__file__).parents[3]


SOURCES = Sources(Path())  # which these do not read


def test_the_rate_of_theorem_1_peaks_where_the_paper_says() -> None:
    (line, *_) = GALLERY["eta-behaviour"].make(SOURCES).axes[0].lines
    t, rate = line.get_data()
    assert t[rate.argmax()] == round((1e3 / 1e-4) ** 0.5)
    assert rate.max() == pytest.approx(1 / (2 * (1e-4 * 1e3) ** 0.5), rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "wanted"), [("theorem-bounds", {"Theorem 1", "Theorem 2"}), ("theorem-3-bounds", {"five paths"})]
)
def test_the_theorems_are_drawn_with_their_bounds(name: str, wanted: set[str]) -> None:
    lines = GALLERY[name].make(SOURCES).axes[0].lines  # checks every claim
    assert wanted < {line.get_label() for line in lines}
    assert {line.get_linestyle() for line in lines} == {"-", "--"}


@pytest.mark.long
def test_every_figure_of_the_pages_is_drawn_again_from_what_is_stored(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "docs" / "figures.py"))
    known = script["drawings"](script["laid_out"](tmp_path))
    made_with_their_runs = {"geometry", "sensitivity", "shapes", "recovery", "which-rate", "horizon", "floors"}
    tables = list(ROOT.glob("docs/figures/*.csv"))
    assert known.keys() | made_with_their_runs == {path.stem for path in [*ROOT.glob("docs/figures/*.png"), *tables]}
    assert tables
    for path in tables:
        assert known[path.stem]() == path.read_text(encoding="utf-8"), path.name
    for name in ("ablation-variance", "edge-of-stability", "rates"):  # one of each source
        first, *_ = known[name]().axes
        assert first.lines
        assert not first.spines["top"].get_visible()  # the common style
    peers, *_ = known["baselines"]().axes
    ((diverged, at),) = [(text.get_text(), text.xy[1]) for text in peers.texts if not text.get_text()[0].isdigit()]
    assert (diverged, peers.get_yticklabels()[at].get_text()) == ("diverged", "d-adaptation (1)")
