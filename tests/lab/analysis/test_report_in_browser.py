"""The report as a reader meets it: in a real browser, at a phone's width and at a desk's."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab.analysis import report

from ..helpers import ROWS, leave_metrics, stored

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]

# The page in a frame of the wanted width; it measures itself and tells the page around it, whose text is then read.
HOST = """<!doctype html><body style="margin:0"><iframe src="page.html" width="{width}" height="900" style="border:0">
</iframe><pre id="found"></pre><script>addEventListener("message", event => {{
document.getElementById("found").textContent = event.data }})</script></body>"""
PROBE = """<script>addEventListener("load", () => {
const page = document.documentElement;
const images = [...document.images].map(i => ({width: i.getBoundingClientRect().width,
  right: i.getBoundingClientRect().right, drawn: i.complete && i.naturalWidth > 0, alt: i.alt}));
document.querySelectorAll("details").forEach(d => d.open = true);
parent.postMessage(JSON.stringify({inner: innerWidth, scroll: page.scrollWidth, images,
  tables: document.querySelectorAll("table tbody tr").length, title: document.title,
  ink: getComputedStyle(document.body).color}), "*") })</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    results = stored(folder, about="A heading that needs more than one line on a phone, being long")
    leave_metrics(folder)
    return report.make(results)[-1]


def browse(page: Path, folder: Path, width: int) -> tuple[dict[str, Any], str]:
    (folder / "page.html").write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    (folder / "host.html").write_text(HOST.format(width=width))
    words = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile",
             "--disable-background-networking", "--enable-logging=stderr", "--window-size=1400,1000",
             "--virtual-time-budget=10000", "--dump-dom", f"file://{folder}/host.html"]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True)  # type: ignore[arg-type]
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None
    assert found[1], "the page never loaded"
    seen: dict[str, Any] = json.loads(unescape(found[1]))
    return seen, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_and_every_picture_is_there(page: Path, tmp_path: Path, width: int) -> None:
    seen, console = browse(page, tmp_path, width)
    assert console == ""
    assert seen["inner"] == width
    assert seen["scroll"] <= width, "the page is wider than the screen"
    assert len(seen["images"]) == 2
    for image in seen["images"]:
        assert image["drawn"], image
        assert image["width"] > 0.8 * min(width, 350)
        assert image["right"] <= width
        assert image["alt"]
    assert seen["tables"] >= len(ROWS)


def test_what_the_browser_check_finds_is_real(page: Path, tmp_path: Path) -> None:
    """The same check on a page that is broken in all three ways, so that a silent browser is noticed."""
    broken = tmp_path / "broken.html"
    text = page.read_text().replace("<h1>", '<div style="width:900px">wide</div><img src="data:,x"><h1>')
    broken.write_text(text.replace("</body>", "<script>missing()</script></body>"))
    (tmp_path / "browser").mkdir()
    seen, console = browse(broken, tmp_path / "browser", 360)
    assert "missing" in console
    assert seen["scroll"] > 360
    assert not all(image["drawn"] for image in seen["images"])
