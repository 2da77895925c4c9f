"""The documentation's site as a reader meets it: whole without the network, and never wider than the screen."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from tests.programs import Launcher

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PAGES = ("index", "how-it-works", "training", "evidence", "api/schedule", "genindex")
WIDTHS = (390, 1024, 1280, 1330, 1400, 1450, 1920)
PROBE = """<script>addEventListener("load", () => parent.postMessage([location.pathname, innerWidth,
  Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)], "*"))</script>"""
# It listens before the first page can speak.
HOST = """<!doctype html><body><pre id="found"></pre><script>const found = {{}}; addEventListener("message",
event => {{ found[event.data.slice(0, 2)] = event.data[2];
document.getElementById("found").textContent = JSON.stringify(found) }})</script>{frames}</body>"""
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, trainer_launcher: Launcher) -> Path:
    target = re.search(r"sphinx-build .* docs (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert target is not None
    root = tmp_path_factory.mktemp("site")
    folder = root / target[1]
    words = ["-W", "--keep-going", "-q", "-b", "html", ROOT / "docs", folder]
    done = trainer_launcher.run([Path(__file__).with_name("build_site.py"), *words])
    assert done.status == 0, done.stderr
    assert [path.name for path in (root / "docs").iterdir()] == ["_build"]  # which git ignores; nothing lies beside it
    return folder


def test_the_reference_shows_docstrings_and_the_papers_equations(site: Path) -> None:
    page = (site / "api" / "schedule.html").read_text(encoding="utf-8")
    for words in ("autowarm.schedule.AdaptiveWarmup", "eq. 7 (practical_eta)", "Raises"):
        assert words in page


def test_no_page_asks_for_anything_from_outside(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|img|iframe)[^>]*\bsrc=\"(?:https?:)?//", text), page.name
        assert not re.search(r"<link[^>]*\bhref=\"(?:https?:)?//", text), page.name
        assert "@import" not in text, page.name
    assert "<math " in (site / "how-it-works.html").read_text(encoding="utf-8")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_no_page_is_wider_than_the_screen(site: Path, tmp_path: Path) -> None:
    frames, expected = "", set()
    for name in PAGES:
        page = site / f"{name}.html"
        probed = page.with_name(f"probed-{page.name}")
        probed.write_text(page.read_text(encoding="utf-8").replace("</body>", PROBE + "</body>"), encoding="utf-8")
        for width in WIDTHS:
            frames += f'<iframe src="file://{probed}" width="{width}" height="900" style="border:0"></iframe>'
            expected.add(f"{probed},{width}")
    (tmp_path / "host.html").write_text(HOST.format(frames=frames), encoding="utf-8")
    words = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile",
             "--disable-background-networking", "--window-size=2000,1000", "--virtual-time-budget=20000", "--dump-dom",
             f"file://{tmp_path}/host.html"]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True)  # type: ignore[arg-type]
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None
    seen = json.loads(unescape(found[1]))
    assert set(seen) == expected
    assert {where: scroll for where, scroll in seen.items() if scroll > int(where.rpartition(",")[2])} == {}
