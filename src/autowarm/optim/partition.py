"""Which tensors of a model are matrices, embeddings, output heads or vectors."""

import re
from collections import defaultdict
from dataclasses import dataclass, field

from torch import nn
from torch.nn import Parameter

__all__ = ["Parts", "partition"]

# Names that output layers go by where a model does not say itself which layer that is.
_HEADS = {"lm_head", "head", "heads", "output", "classifier", "fc_out", "embed_out"}
# Tensors held outside any layer that look up or offset, and do not multiply: position and class tokens, bias tables.
_LOOKED_UP = re.compile(r"(^|_)(pos|positions?|embeds?|embeddings?|tokens?|table|bias(es)?|bias_[kv])$", re.IGNORECASE)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

Named = tuple[str, Parameter]


@dataclass
class Parts:
    """A model's trained tensors by role, each once, as (name, tensor).

    Attributes:
        matrices: weights of hidden linear and convolution layers, and matrices held outside any layer.
        stacks: tensors of three or more dimensions held outside any layer, as experts keep them: (…, m, n).
        heads: the output layer's weight, where it is not tied to an embedding.
        embeddings: embedding tables (and heads tied to them), position and class tokens, bias tables.
        vectors: everything of fewer than two dimensions, or with a single row or column.
    """

    matrices: list[Named] = field(default_factory=list)
    stacks: list[Named] = field(default_factory=list)
    heads: list[Named] = field(default_factory=list)
    embeddings: list[Named] = field(default_factory=list)
    vectors: list[Named] = field(default_factory=list)


def partition(model: nn.Module) -> Parts:
    """Sort a model's trained tensors by role.

    The output layer is the one the model names itself (transformers' ``get_output_embeddings``, timm's
    ``get_classifier``), else the outermost layer called lm_head, head, output, classifier or alike, where there is just
    one. Frozen tensors are left out.

    Raises:
        ValueError: nothing in the model requires a gradient.

    Example:
        >>> import torch
        >>> from autowarm.optim import partition
        >>> model = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 8))
        >>> parts = partition(model)
        >>> [name for name, _ in parts.matrices], [name for name, _ in parts.embeddings]
        (['1.weight'], ['0.weight'])
    """
    embedding_ids = {
        id(module.weight) for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    }
    head_ids = _head_ids(model)
    parts = Parts()
    seen: set[int] = set()
    for module_name, module in model.named_modules():
        for own_name, p in module.named_parameters(prefix=module_name, recurse=False):
            name = own_name.removeprefix(".")
            if not p.requires_grad or id(p) in seen:
                continue
            seen.add(id(p))
            leaf = name.rsplit(".", 1)[-1]
            bare = not isinstance(module, (nn.Linear, *_CONVOLUTIONS))
            if p.ndim < 2 or (p.ndim == 2 and min(p.shape) == 1):
                parts.vectors.append((name, p))
            elif id(p) in embedding_ids or (bare and _LOOKED_UP.search(leaf)):
                parts.embeddings.append((name, p))
            elif id(p) in head_ids:
                parts.heads.append((name, p))
            elif bare and p.ndim > 2:
                parts.stacks.append((name, p))
            else:
                parts.matrices.append((name, p))
    if not seen:
        raise ValueError(f"{type(model).__name__} has no tensor that requires a gradient: there is nothing to train")
    return parts


def _head_ids(model: nn.Module) -> set[int]:
    for ask in ("get_output_embeddings", "get_classifier"):
        method = getattr(model, ask, None)
        layer = method() if callable(method) else None
        if isinstance(layer, nn.Linear):
            return {id(layer.weight)}
    by_depth: dict[int, list[nn.Linear]] = defaultdict(list)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.rsplit(".", 1)[-1] in _HEADS:
            by_depth[name.count(".")].append(module)
    # Layers of such a name further in, or one in every block, are hidden ones.
    outermost = by_depth[min(by_depth)] if by_depth else []
    return {id(outermost[0].weight)} if len(outermost) == 1 else set()
