"""What the process loads of which workers are forks: PyTorch and the training loop, never a user's module."""

import importlib
import signal
import sys

sys.path[:] = filter(None, sys.path)  # not the folder of the command: a file there may have a package's name
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, but only the parent handles it

from .pool import set_up  # noqa: E402

set_up()
# After the environment is set, which PyTorch reads as it is imported.
importlib.import_module("autowarm.lab.training.loop")
importlib.import_module("torch.utils.tensorboard")
