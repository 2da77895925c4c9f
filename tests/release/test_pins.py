"""What the environment is built from: pins, the hashes of their files, and the command that checks them."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pins_and_the_hashed_pins_are_the_same_and_name_no_index() -> None:
    plain = (ROOT / "constraints.txt").read_text()
    hashed = (ROOT / "constraints.hashes.txt").read_text()
    assert "://" not in plain + hashed
    assert not re.findall(r"^-", plain + hashed, re.MULTILINE)  # an option, such as an index
    blocks = re.split(r"\n(?=\S)", hashed.strip())
    assert sorted(block.split()[0] for block in blocks) == plain.split()
    assert [block.split()[0] for block in blocks if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", block)] == []


def test_every_requirement_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for name in ("lab", "test", "lint", "docs") for line in extras[name])]
    names = {line.partition(">=")[0].partition("[")[0].lower() for line in wanted} - {"autowarm"}
    assert names <= {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().split()}


def test_setup_installs_nothing_that_is_not_checked_against_its_hash() -> None:
    make = shutil.which("make")
    assert make is not None
    words = [make, "--no-print-directory", "--dry-run", "--always-make", "setup"]
    recipe = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert subprocess.run(["sh", "-n"], input=recipe, capture_output=True, text=True, timeout=60).stderr == ""
    assert "--require-hashes" in recipe
    assert "-r constraints.hashes.txt" in recipe
    installs = [line for line in recipe.replace("\\\n", " ").splitlines() if "pip install" in line]
    # uv checks a package whose constraint has hashes, too.
    checked = ("--require-hashes", "--no-deps --no-build-isolation -e .", "--constraint constraints.hashes.txt")
    assert len(installs) == 4
    assert all(any(words in line for words in checked) for line in installs)
