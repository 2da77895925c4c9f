"""The core goes without any trainer, and a plug-in without its trainer says what to install."""

import subprocess
import sys

CODE = """
import sys
from autowarm import *
import autowarm.geometry, autowarm.optim, autowarm.schedule, autowarm.smoothness, autowarm.theory
unwanted = {"transformers", "lightning", "pytorch_lightning", "accelerate", "autowarm.integrations"}
print(sorted(unwanted & set(sys.modules)))
for trainer in ("transformers", "lightning", "accelerate"):
    for name in (trainer, "pytorch_lightning"):
        sys.modules[name] = None  # as if it were not installed
    try:
        __import__(f"autowarm.integrations.{trainer}")
    except ImportError as problem:
        print(problem)
"""


def test_the_core_alone_and_plug_ins_without_their_trainers() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    core, *messages = done.stdout.splitlines()
    assert core == "[]"
    assert messages == [
        f"this plug-in needs {trainer}: pip install 'autowarm[{trainer}]'"
        for trainer in ("transformers", "lightning", "accelerate")
    ]
