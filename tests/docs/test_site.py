"""The documentation's site: built without a warning, and whole without the network."""

import re
from pathlib import Path

import pytest

from tests.programs import Launcher

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_site_is_built_with_docstrings_and_equations_and_asks_for_nothing_from_outside(
    tmp_path: Path, trainer_launcher: Launcher
) -> None:
    target = re.search(r"sphinx-build .* docs (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert target is not None
    site = tmp_path / target[1]
    words = ["-W", "--keep-going", "-q", "-b", "html", ROOT / "docs", site]
    done = trainer_launcher.run([Path(__file__).with_name("build_site.py"), *words])
    assert done.status == 0, done.stderr
    reference = (site / "api" / "schedule.html").read_text(encoding="utf-8")
    assert "autowarm.schedule.AdaptiveWarmup" in reference
    assert "eq. 7 (practical_eta)" in reference
    pages = {page.name: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    assert len(pages) > 10
    outside = r"<(?:script|img|iframe)[^>]*\bsrc=\"(?:https?:)?//|<link[^>]*\bhref=\"(?:https?:)?//|@import"
    assert [name for name, text in pages.items() if re.search(outside, text)] == []
    assert "<math " in pages["how-it-works.html"]
