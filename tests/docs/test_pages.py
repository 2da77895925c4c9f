"""What the README and the documentation tell a reader to type works, and what they point to is there."""

import importlib
import json
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import nbformat
import pytest
from nbclient import NotebookClient

from autowarm.lab.commands import main
from autowarm.lab.config import build
from autowarm.lab.execution import pool
from tests.cases import each

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "_build" not in page.parts]
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
# A snippet for "your own loop" needs one: what a page leaves to the reader.
READERS_OWN = {
    "index.md": """
import torch
from autowarm import AdaptiveWarmup

opt, total_steps, loss = torch.optim.AdamW([torch.ones(2, requires_grad=True)]), 100, 4.0
""",
    "paper.md": """
import torch
from autowarm import Muon

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

    def forward(self, x, y):
        return 4.0 + torch.nn.functional.cross_entropy(self.net(x), y)  # above the page's target loss

model = Model()
optimizer = Muon.from_model(model, lr=1e-2)
loader = [(torch.randn(32, 8), torch.randint(4, (32,))) for _ in range(200)]
""",
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read(page: Path) -> str:
    """What a page says, with the tables that it points to below it."""
    text = page.read_text(encoding="utf-8")
    tables = re.findall(r"\]\((\S+\.csv)\)", text)
    return "\n\n".join([text, *((page.parent / table).read_text(encoding="utf-8") for table in tables)])


def fences(page: Path) -> list[tuple[str, str]]:
    return FENCE.findall(read(page))


APART = {"integrations.md"}  # each part stands alone: tests/integrations runs them
PYTHON = [page for page in PAGES if page.name not in APART and any(kind == "python" for kind, _ in fences(page))]
LONG = {"training.md"}  # makes whole comparisons


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.long] if page.name in LONG else [], id=name_of(page)) for page in PYTHON],
)
def test_the_python_on_a_page_runs_from_top_to_bottom(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool, "room", lambda: 1)  # as many workers are started
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(READERS_OWN.get(page.name, ""), names)
    for kind, code in fences(page):
        if kind == "python":
            exec(compile(code, name_of(page), "exec"), names)


def commands() -> Iterator[tuple[str, str]]:
    """Every `autowarm …` on the pages, in a shell's block or in the middle of a sentence."""
    for page in PAGES:
        text = read(page)
        for kind, code in fences(page):
            if kind not in ("python", "text", "{toctree}", "{eval-rst}"):
                yield from ((name_of(page), line) for line in code.splitlines())
        # Four spaces make code, too; what is in backticks with the command's name first is meant to be typed.
        yield from ((name_of(page), line.strip()) for line in text.splitlines() if line.startswith("    autowarm "))
        yield from ((name_of(page), found) for found in re.findall(r"`(autowarm [^`]+)`", FENCE.sub("", text)))


SHELL = sorted({(page, line.strip()) for page, line in commands() if line.strip().startswith(("autowarm ", "make "))})


PARSED = {"compare", "train", "sweep", "smoothness", "figure"}  # by `parse`, before anything is done


class Understood(BaseException):  # no error that a command would explain
    """The command line was parsed; what it would do is not done."""


@pytest.mark.parametrize(("page", "line"), SHELL, ids=[f"{page}: {line}" for page, line in SHELL])
def test_a_command_on_a_page_is_understood(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return
    words = [str(ROOT / word) if word.startswith("examples/") else word for word in words]  # as --task names them
    if len(words) == 2 or words[1] not in PARSED or any(re.search(r"\b[A-Z]{4}", word) for word in words[1:]):
        words = [*words[:2], "--help"]  # a command's name, or a pattern such as `autowarm figure NAME`
    for kind, text in fences(ROOT / page):
        if kind == "yaml":  # the file that the page's commands name
            (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
        if kind == "python" and (named := re.match(r"# (\w+\.py)\n", text)):
            (tmp_path / named[1]).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    parse = build.parse

    def only_parse(*args: Any, **options: Any) -> None:
        parse(*args, **options)
        raise Understood

    for name in PARSED:
        monkeypatch.setattr(importlib.import_module(f"autowarm.lab.commands.{name}"), "parse", only_parse)
    if words[1:3] == ["figure", "--list"]:  # whose costs take seconds to add up, and tests of their own
        monkeypatch.setattr("autowarm.lab.paper.experiments.listing", list)
    try:
        status = main(words[1:])
    except (Understood, SystemExit) as stopped:
        status = getattr(stopped, "code", 0)
    assert status in (0, None), capsys.readouterr().err
    if words[1] == "figure" and words[2] != "all" and not words[2].startswith("-"):
        from autowarm.lab.paper.experiments import GALLERY

        assert words[2] in GALLERY


@each("page", PAGES)
def test_what_a_page_points_to_is_there(page: Path) -> None:
    text = read(page)
    paths = re.findall(r"`((?:src|docs|examples|benchmarks|tests)/[\w./-]*\w)`", text)
    paths += re.findall(r"\bpython ((?:examples|benchmarks)/\w+\.py)", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    links = re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", FENCE.sub("", text))
    assert [link for link, _ in links if not (page.parent / link).exists()] == []
    linked = {anchor: page.parent / link if link else page for link, anchor in links if anchor}
    assert [
        anchor for anchor, target in linked.items() if target.suffix == ".md" and anchor not in anchors(target)
    ] == []


def anchors(page: Path) -> list[str]:
    """The anchors of a page's headings, as GitHub and MyST name them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", read(page)), re.MULTILINE)
    return [re.sub(r"[^\w\s-]", "", heading.lower()).replace(" ", "-") for heading in headings]


@each("page", PAGES)
def test_no_line_of_a_page_is_hidden_as_a_comment(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    assert re.findall(r"^ {0,3}%.*", text, re.MULTILINE) == []  # MyST leaves such a line out, even amid a sentence


LABELS = """
main_problem update_rule_1 quadratic_approx update_rule_2 stoch_opt_problem update_rule_3 practical_eta constr_1
constr_2 constr_3 target_schedule step_bound ass:star_convexity ass:smoothness2 ass:boundedness thm:1 thm:2 thm:3
ass:smoothness2_weak ass:overparam ass:smoothness1 lem:boundedness lem:smoothness_equivalence
cor:star_convex_gradient alg:lr_scheduler fig:smoothness-lion fig:eta_behavior fig:warmup-sweep-124M
fig:warmup-sweep-210M fig:swin fig:abl-fstar fig:abl-sigma fig:abl-sched fig:lips-muon-norm fig:scheduler-lion
tab:optimizers tab:model_arch tab:assumption_hyperparams tab:main_hyperparams tab:swin_hyperparams
"""


def test_the_papers_page_names_every_label() -> None:
    text = read(ROOT / "docs" / "paper.md")
    labels = LABELS.split()
    assert [label for label in labels if not re.search(rf"\b{label}\b", text)] == []


def test_the_optimizers_tables_are_those_of_the_stored_run() -> None:
    measured = runpy.run_path(str(ROOT / "benchmarks" / "optimizers.py"))
    stored = json.loads((ROOT / "docs" / "data" / "optimizers.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8")
    for name, text in measured["tables"](stored["results"]).items():
        path = f"data/tables/{name}.csv"
        assert (ROOT / "docs" / path).read_text(encoding="utf-8") == text
        assert f"]({path})" in page


@pytest.mark.long
def test_the_notebook_runs_and_is_stored_as_run() -> None:
    notebook = nbformat.read(ROOT / "docs" / "from_tuned_to_none.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
    # Fewer steps say as much about whether it runs.
    code[0].source, cut = re.subn("STEPS, BATCH, SEEDS = .*", "STEPS, BATCH, SEEDS = 130, 32, (0,)", code[0].source)
    assert cut == 1
    ran = NotebookClient(notebook, timeout=1200, kernel_name="python3").execute()
    printed = "".join(output.get("text", "") for cell in ran.cells for output in cell.get("outputs", []))
    assert "ended by" in printed
