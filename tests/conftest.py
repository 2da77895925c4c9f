"""Settings for every test: one thread, property tests that are the same on every run, and imports that are shared."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from tests.programs import Launcher, clean_environment

torch.set_num_threads(1)
gc.disable()  # a fifth of what collecting the tests takes, until `pytest_collection_finish`
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("steady")


# Of the launchers that are slow to start.
USERS = {
    "trainer_launcher": ("tests/integrations/", "tests/docs/test_examples.py", "tests/docs/test_site.py"),
    "lab_launcher": ("tests/lab/test_struck.py",),
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is run by a launcher."""
    for item in items:
        if any(name.endswith(("_launcher", "two_processes")) for name in getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    """Leave what is imported out of later walks through all live objects: there are a million of them."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or some libraries complain at exit of what is left


@pytest.fixture(scope="session")
def rank_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Forks ranks that have what a distributed step imports, which takes longer than most of them run."""
    folder = tmp_path_factory.mktemp("rank-launcher")
    imports = ["torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "autowarm"]
    launcher = Launcher(imports, os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}, folder)
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def trainer_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Forks scripts that use a trainer, in an environment without settings, home or network."""
    folder = tmp_path_factory.mktemp("trainer-launcher")
    environment = clean_environment(folder) | {"MPLBACKEND": "Agg"}
    launcher = Launcher(["transformers.trainer", "lightning.pytorch", "matplotlib.pyplot"], environment, folder)
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def lab_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Forks the lab's commands, with all that a compiled run of text on ranks imports and does first."""
    folder = tmp_path_factory.mktemp("lab-launcher")
    imports = ["autowarm.lab.training.loop", "transformers.models.llama.modeling_llama", "torch.utils.tensorboard",
               "torch._dynamo.backends.debugging", "torch._functorch.aot_autograd", "autowarm.lab.analysis.report",
               Path(__file__).with_name("compiled.py")]  # fmt: skip
    launcher = Launcher(imports, clean_environment(folder), folder)
    yield launcher
    launcher.close()


@pytest.fixture
def python_without() -> Callable[[Sequence[str], str], str]:
    """Runs code in a fresh interpreter that misses some packages, and returns what it prints."""

    def run(missing: Sequence[str], code: str) -> str:
        hidden = f"import sys; sys.modules |= dict.fromkeys({list(missing)})\n"  # None is reported as a missing one is
        done = subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By file, except that one worker runs all the files that use a slow launcher, which so is started once."""
    from xdist.scheduler import LoadFileScheduling

    class ByLauncher(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((launcher for launcher, files in USERS.items() if file.startswith(files)), file)

    return ByLauncher(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOWARM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
