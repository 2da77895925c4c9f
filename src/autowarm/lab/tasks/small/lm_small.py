"""A language model."""

from torch import nn

from ..recipes import Transformer, language


def _transformer() -> nn.Module:
    return Transformer(512, 512, 32, width=48, depth=2, causal=True)


TASK = language(_transformer, 512, sequences=16)
