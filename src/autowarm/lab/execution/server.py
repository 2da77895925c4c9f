"""What the process loads of which workers are forks: PyTorch and the training loop, never a user's module."""

import importlib
import sys

sys.path[:] = filter(None, sys.path)  # not the folder of the command: a file there may have a package's name

from ..processes import leave_ctrl_c_to_parent  # noqa: E402
from .pool import set_up  # noqa: E402

leave_ctrl_c_to_parent()
set_up()
# After the environment is set, which PyTorch reads as it is imported.
importlib.import_module("autowarm.lab.training.loop")
importlib.import_module("torch.utils.tensorboard")
