"""`autowarm WORDS…`, with networks captured and differentiated as `torch.compile` does, but run without generated code.

To generate it takes a processor many minutes.
"""

import functools
import sys

import torch

from autowarm.__main__ import main

torch.compile = functools.partial(torch.compile, backend="aot_eager")
sys.exit(main())
