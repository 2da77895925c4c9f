"""What importing the package does and does not bring in."""

import importlib
import subprocess
import sys

import pytest

import autowarm


def in_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_public_name_is_there() -> None:
    for name in autowarm.__all__:
        assert getattr(autowarm, name).__name__ == name
        assert name in dir(autowarm)
    with pytest.raises(AttributeError, match="module 'autowarm' has no attribute 'AdaptiveWormup'"):
        autowarm.AdaptiveWormup  # noqa: B018


@pytest.mark.parametrize("name", ["geometry", "optim", "orthogonalize"])
def test_a_room_lists_what_is_public_and_nothing_else(name: str) -> None:
    room = importlib.import_module(f"autowarm.{name}")
    assert sorted(room.__all__) == dir(room)
    assert all(hasattr(room, one) for one in room.__all__)


def test_the_package_alone_does_not_import_torch() -> None:
    assert in_fresh_python("import sys, autowarm; print('torch' in sys.modules)") == "False"


CORE_ALONE = """
import sys, torch, numpy
before = {name.partition(".")[0] for name in sys.modules}
from autowarm import *
import autowarm.geometry, autowarm.orthogonalize, autowarm.schedule, autowarm.optim, autowarm.theory
import autowarm.smoothness
third = {name.partition(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names) - {"autowarm"}
# Lazily loaded parts of torch itself bring in what they find installed; none of it is ours.
print(sorted(third & {"transformers", "tokenizers", "jsonargparse", "rich", "matplotlib", "jinja2", "yaml", "scipy",
                      "lightning", "pytorch_lightning", "accelerate"}))
print(sorted({"autowarm.lab", "autowarm.integrations"} & set(sys.modules)))
for trainer in ("transformers", "lightning", "accelerate"):
    for name in (trainer, "pytorch_lightning"):
        sys.modules[name] = None  # as if it were not installed
    try:
        __import__(f"autowarm.integrations.{trainer}")
    except ImportError as problem:
        print(problem)
"""


def test_the_core_goes_alone_and_a_plug_in_without_its_trainer_says_what_to_install() -> None:
    third, own, *messages = in_fresh_python(CORE_ALONE).splitlines()
    assert (third, own) == ("[]", "[]")
    assert messages == [
        f"this plug-in needs {trainer}: pip install 'autowarm[{trainer}]'"
        for trainer in ("transformers", "lightning", "accelerate")
    ]
