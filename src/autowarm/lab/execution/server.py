"""What the process loads of which workers are forks: PyTorch and the training loop, never a user's module."""

import importlib
import signal
import sys
from contextlib import suppress

with suppress(ValueError):  # the folder in which the command was called: a file there may have a package's name
    sys.path.remove("")
if hasattr(signal, "SIGHUP"):  # as a terminal closes; if the server died of it, its workers would count as dead
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

from .pool import set_up

set_up()
for _name in ("autowarm.lab.training.loop", "torch._dynamo", "torch.utils.tensorboard"):
    importlib.import_module(_name)
