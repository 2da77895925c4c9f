"""What the process loads of which workers are forks: PyTorch and the training loop, never a user's module."""

import importlib
import signal
import sys

# Without the folder in which the command was called: a file there may have a package's name.
sys.path[:] = filter(None, sys.path)
# A terminal that closes sends it: if the server died of it, its workers would count as dead.
signal.signal(signal.SIGHUP, signal.SIG_IGN)

from .pool import set_up

set_up()
importlib.import_module("autowarm.lab.training.loop")  # which comes after what it needs is set
importlib.import_module("torch.utils.tensorboard")
