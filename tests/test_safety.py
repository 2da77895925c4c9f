"""Nothing that is read can run: a scan of the source, and traps at every way in."""

import ast
import contextlib
import dataclasses
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import autowarm
from autowarm.lab.analysis import report
from autowarm.lab.analysis.results import Results
from autowarm.lab.analysis.summary import summarise
from autowarm.lab.commands import main
from autowarm.lab.config import CompareConfig, DataConfig, LabError, ModelConfig, RunConfig, SweepConfig
from autowarm.lab.config.build import parse, read_yaml
from autowarm.lab.training.loop import train
from tests.cases import each
from tests.lab.helpers import CELL, row

SOURCE = Path(autowarm.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
# What turns data into code, or a name in a file into an import.
FORBIDDEN = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "shelve.open", "marshal.loads", "marshal.load",
    "pickle.load", "pickle.loads", "dill.load", "dill.loads", "cloudpickle.load", "cloudpickle.loads", "joblib.load",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "torch.hub.load", "runpy.run_path",
    "pd.read_pickle", "subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_output",
    "importlib.util.spec_from_file_location",
}  # fmt: skip
PICKLES = {"pickle", "dill", "cloudpickle", "shelve", "marshal"}
NETWORK = {
    "urllib", "urllib3", "requests", "http", "httpx", "aiohttp", "ftplib", "smtplib", "huggingface_hub", "socket",
}  # fmt: skip
# A task of the user's own is code. `compare --task` names its file, and the command's own workers get it pickled.
OWN_TASK = "lab/tasks/own.py"
ALLOWED = {OWN_TASK: {"cloudpickle.loads", "importlib.util.spec_from_file_location"}}
# The last only pickles, for a hash.
UNPICKLERS = {OWN_TASK: {"cloudpickle"}, "lab/tasks/fingerprint.py": {"cloudpickle"}}
# Where a package talks to the network, and who asked for it.
ASKED = {"lab/execution/cluster.py": "a Ray cluster's address"}


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def keyword(call: ast.Call, name: str) -> Any:
    return next((ast.unparse(one.value) for one in call.keywords if one.arg == name), None)


@each("path", MODULES)
def test_no_module_turns_data_into_code_or_imports_pickle_or_the_network(path: Path) -> None:
    tree, imported = ast.parse(path.read_text(encoding="utf-8")), set()
    for name, call in calls(tree):
        where = f"{name_of(path)}:{call.lineno}"
        assert name not in FORBIDDEN - ALLOWED.get(name_of(path), set()), where
        if name == "torch.load":
            assert keyword(call, "weights_only") == "True", where
        if name in ("np.load", "numpy.load", "np.save"):
            assert keyword(call, "allow_pickle") == "False", where
        if name == "jinja2.Environment":
            assert keyword(call, "autoescape") == "True", where
        assert keyword(call, "trust_remote_code") in (None, "False"), where
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.add((node.module or "").partition(".")[0])
    assert imported & PICKLES == UNPICKLERS.get(name_of(path), set())
    assert not imported & NETWORK or name_of(path) in ASKED


CODE = [
    '!!python/object/apply:os.system ["touch sprung"]', "{class_path: trap.Trap, init_args: {file: sprung}}",
    "{a: {class_path: trap.Trap, init_args: {file: sprung}}}", "trap.Trap", "{class_path: trap.spring, init_args: {}}",
    "__import__('os').system('touch sprung')", "${oc.env:HOME}", '{a: !!python/object/apply:os.system ["touch it"]}',
]  # fmt: skip


TRAP = """
import pathlib

pathlib.Path("sprung").touch()

class Trap:
    def __init__(self, file: str = "sprung") -> None:
        pathlib.Path(file).touch()

def spring() -> Trap:
    return Trap()
"""


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module that leaves a trace when it is imported, and another when it is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "trap.py").write_text(TRAP)
    return tmp_path


@each("value", CODE)
def test_a_config_file_is_never_executed(value: str, trapped: Path) -> None:
    Path("mine.yaml").write_text(f"base: {value}\ncells: {{a: {{set: {{optimizer.options: {value}}}}}}}\n")
    for command in (
        lambda: read_yaml("mine.yaml"),
        lambda: parse(["--config", "mine.yaml"], SweepConfig, "sweep", "").points(),
        lambda: parse(["--base", value, "--cells", "{a: {}}"], SweepConfig, "sweep", "").points(),
        lambda: parse(["--grid", f"[{value}]", "--cells", "{a: {}}"], SweepConfig, "sweep", "").points(),
        lambda: parse(["--cells", f"{{a: {{set: {value}}}}}"], SweepConfig, "sweep", "").points(),
        lambda: parse(["--options.muon", value], CompareConfig, "compare", "", preset="demo").points(),
    ):
        with contextlib.suppress(LabError):
            command()
    assert sorted(path.name for path in trapped.iterdir()) == ["mine.yaml", "trap.py"]


TAG = "<script>alert('&\")</script>"


def poisoned(value: Any) -> Any:
    """The same with a tag in every text, keys and ids apart."""
    if isinstance(value, str):
        return value + TAG
    if isinstance(value, list):
        return [poisoned(one) for one in value]
    if isinstance(value, dict):
        return {key: one if key in ("schedule", "id") else poisoned(one) for key, one in value.items()}
    return value


def test_every_value_in_the_report_is_escaped() -> None:
    more = {"cell": CELL | {"name": "n"}, "switched_at": 9, "warnings": ["w"]}
    rows = [row(kind, 9, seed, 2.0, **more) for kind in ("linear", "adaptive") for seed in (0, 1)]
    document: dict[str, Any] = poisoned(
        {"config": dataclasses.asdict(CompareConfig()), "corpus": {"name": "t", "sha256": "0" * 64, "tokens": 9},
         "runs": rows, "failed": {"run": "why"}}
    )  # fmt: skip
    document["environment"] = {TAG: TAG}
    page = report.html(Results(Path(), document, summarise(document["runs"])), [], [])
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 20


def test_training_and_reporting_open_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []

    def connect(self: socket.socket, address: Any) -> None:
        tried.append(address)
        raise ConnectionRefusedError("the tests have no network")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, connect)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **_: connect(None, words))  # type: ignore[arg-type]
    monkeypatch.setenv("AUTOWARM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "texts"
    folder.mkdir()
    for index in range(30):
        (folder / f"{index}.txt").write_text(f"text {index} of a few words " * 20)
    model = ModelConfig(layers=1, width=16, heads=2, ff=32, vocab_size=280, seq_len=8)
    config = RunConfig(model=model, data=DataConfig(corpus=str(folder)), steps=2, batch_size=2, eval_batches=1)
    train(config, tmp_path / "run")
    assert main(["report", str(tmp_path)]) == 1
    assert tried == []
