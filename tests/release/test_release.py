"""What a user gets from the package index: built from this tree, installed, imported where nothing else is."""

import os
import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import autowarm
from autowarm.__main__ import _EXTRA

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel alone, in a folder that comes before the tree on the path."""
    target = tmp_path_factory.mktemp("installed")
    (wheel,) = built.glob("*.whl")
    install = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target), str(wheel)]
    done = subprocess.run([sys.executable, *install], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return target


def run(installed: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=300, env=environment, cwd=installed
    )


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert {name.split("/")[0] for name in names} == {"autowarm", f"autowarm-{autowarm.__version__}.dist-info"}
    files = ("py.typed", "lab/config/presets/compare/demo.yaml", "lab/analysis/templates/report.html.j2")
    for name in (*files, "lab/paper/settings.csv", "schedule/adaptive.py"):
        assert f"autowarm/{name}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    sources = {name: wheel.read(name).decode() for name in names if name.endswith(".py")}
    assert [name for name in sources if "stud" in name] == ["autowarm/lab/paper/study.py"]  # the fits to curvature
    assert [name for name, code in sources.items() if re.search(r"^\s*(from|import) studies", code, re.MULTILINE)] == []


def test_the_source_distribution_is_small_and_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (archive,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    assert archive.stat().st_size < 1_000_000
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert not (source / "docs").exists()  # results and figures
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "examples/plain_loop.py"):
        assert (source / name).is_file()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "again")]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (again,) = (tmp_path / "again").glob("*.whl")

    def content(path: Path) -> dict[str, int]:
        with zipfile.ZipFile(path) as opened:
            return {entry.filename: entry.CRC for entry in opened.infolist()}

    assert content(again) == content(wheel)


def test_the_index_gets_metadata_that_it_knows_and_a_readme_without_relative_links(wheel: zipfile.ZipFile) -> None:
    text = wheel.read(f"autowarm-{autowarm.__version__}.dist-info/METADATA").decode()
    assert text.startswith("Metadata-Version: 2.4\n")  # twine 6.2 refuses 2.5
    header, _, readme = text.partition("\n\n")
    assert "Description-Content-Type: text/markdown" in header
    assert re.search(r"^Project-URL: Paper, https://arxiv\.org/abs/2602\.05813$", header, re.MULTILINE)
    assert readme.startswith("# autowarm")
    outside_code = re.sub(r"^```.*?^```", "", readme, flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)\s]+)\)", outside_code)
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.parametrize(
    ("given", "with_repository", "without"),
    [
        ("see [the *map*](docs/map.md#two), here", "see [the *map*](https://x.org/a/blob/v1/docs/map.md#two), here",
         "see the *map*, here"),
        ("![a curve](docs/a.png)", "![a curve](https://x.org/a/raw/v1/docs/a.png)", "*[Figure: a curve]*"),
        ("[site](https://y.org/z) [above](#top)", "[site](https://y.org/z) [above](#top)", None),
        ("```python\nfind[name](docs)\n```\n`x[0](y)`", "```python\nfind[name](docs)\n```\n`x[0](y)`", None),
    ],
)  # fmt: skip
def test_links_to_files_become_absolute_or_words(given: str, with_repository: str, without: str | None) -> None:
    for_an_index = runpy.run_path(str(ROOT / "hatch_build.py"))["for_an_index"]
    assert for_an_index(given, "https://x.org/a/", "v1") == with_repository
    assert for_an_index(given, None, "v1") == (given if without is None else without)


@pytest.mark.long
def test_the_core_runs_from_the_wheel_without_the_extras_and_the_rest_says_what_to_install(installed: Path) -> None:
    code = f"""
import sys
for name in {sorted(_EXTRA | {"lightning", "pytorch_lightning", "accelerate"})}:
    sys.modules[name] = None  # is reported by name, as a missing one is
import torch, autowarm
opt = autowarm.Muon.from_model(torch.nn.Linear(4, 4), lr=1e-2)
opt.step()
autowarm.AdaptiveWarmup(opt, total_steps=10).step(1.0)
print(autowarm.__file__, any(name.startswith("autowarm.lab") for name in sys.modules), sep="\\n")
for trainer in ("transformers", "lightning", "accelerate"):
    try:
        __import__(f"autowarm.integrations.{{trainer}}")
    except ImportError as problem:
        print(problem)
from autowarm.__main__ import main
sys.argv = ["autowarm", "compare"]
sys.exit(main())
"""
    done = run(installed, "-c", code)
    assert done.returncode == 2, done.stderr
    home, lab, *messages = done.stdout.splitlines()
    assert Path(home).is_relative_to(installed)
    assert lab == "False"
    for trainer, message in zip(("transformers", "lightning", "accelerate"), messages, strict=True):
        assert f"pip install '.[{trainer}]'" in message
    assert "pip install '.[lab]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_needs_no_torch(installed: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from autowarm.lab.commands import main; sys.exit(main(['--help']))"
    done = run(installed, "-c", code)
    assert (done.returncode, done.stdout[:15]) == (0, "usage: autowarm"), done.stderr


def test_versions_agree_and_ci_runs_the_oldest_that_are_allowed_and_the_newest_pinned() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert re.search(r'^version = "(.+)"$', project, re.MULTILINE)[1] == autowarm.__version__ == citation["version"]
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]
    pairs = [(entry["python"], entry["torch"]) for entry in jobs["core"]["strategy"]["matrix"]["include"]]
    assert f'requires-python = ">={pairs[0][0]}"' in project
    assert f"torch>={pairs[0][1].rpartition('.')[0]}" in project
    assert f"torch=={pairs[-1][1]}" in (ROOT / "constraints.txt").read_text().split()
