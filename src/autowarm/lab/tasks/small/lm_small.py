"""A language model."""

from functools import partial

from ..recipes import Transformer, language

TASK = language(partial(Transformer, 512, 512, 32, width=48, depth=2, causal=True), 512, sequences=16)
