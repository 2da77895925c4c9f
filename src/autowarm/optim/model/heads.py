"""Finds the output layer of a model, or asks which it is."""

import re
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

# What wrappers (torch.compile, FSDP, activation checkpointing) insert into the names of modules; DDP's is at the front.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# Usual names of output layers, for models that do not name theirs, and of lists and dictionaries of them.
_USUAL = {
    "lm_head", "head", "heads", "output", "classifier", "classification_head", "fc", "fc_out", "embed_out", "score",
    "qa_outputs", "logits", "logits_proj",
}  # fmt: skip
_SEVERAL = re.compile(r"(^|_)(head|output|classifier|score)s?$")
_LISTS = (nn.ModuleList, nn.ModuleDict)
TRANSPOSED_CONVOLUTIONS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED_CONVOLUTIONS)
LAYERS = (nn.Linear, *CONVOLUTIONS)


def output_tensors(model: nn.Module) -> list[Tensor]:
    """The tensors of the output layer, see `partition`.

    Raises:
        ValueError: several layers may be the output layer.
    """
    # The model's own word comes first.
    model = _unwrapped(model)
    for ask in ("get_output_embeddings", "get_classifier"):
        method = getattr(model, ask, None)
        answer = method() if callable(method) else None
        several = [*answer.children()] if isinstance(answer, _LISTS) else answer
        several = several if isinstance(several, tuple | list) else [several]
        if layers := [layer for one in several if isinstance(one, nn.Module) for layer in _layers(one)[-1:]]:
            return _tensors(layers)
    # Then a usual name, of a matrix rather than of a vector, and outermost
    named = _outermost_by_name(model)
    named = {name: some for name, some in named.items() if any(_is_matrix(p) for p in some)} or named
    if len(named) > 1:
        which = " or ".join(named if len(named) < 4 else [*[*named][:3], "another"])
        raise ValueError(f"which is the output layer, {which}? Pass heads= with regular expressions for its weight")
    if named:
        return next(iter(named.values()))
    # The last layer that is as wide as a vocabulary; a square table may be one of anything.
    tables = {table for module in model.modules() if (table := table_of(module))}
    vocabularies = {rows for rows, columns in tables if rows != columns}
    linear: list[Any] = [m for m in _outside_of_lists(model) if _is_linear(m)]
    if wide := [m for m in linear if m.weight.shape[0] in vocabularies]:
        return _tensors(wide[-1:])
    # The last linear layer of a chain, or of the only part that a model has.
    parts = [one for one in map(_unwrapped, model.children()) if any(p.ndim > 1 for p in one.parameters())]
    if not parts or isinstance(parts[-1], _LISTS) or not (isinstance(model, nn.Sequential) or len(parts) == 1):
        return []
    if not _is_linear(parts[-1]):
        return output_tensors(parts[-1])
    # It must follow another layer, which a table of embeddings is not.
    before = (m for part in parts[:-1] for m in part.modules() if not table_of(m))
    return _tensors(parts[-1:]) if any(p.ndim > 1 for m in before for p in m.parameters(recurse=False)) else []


def _outermost_by_name(model: nn.Module) -> dict[str, list[Tensor]]:
    """The layers and bare tensors of a usual name that are least deep in a model, but none in a list of blocks."""
    level = {"": model}  # by path, all modules at one depth
    while level:
        candidates: dict[str, list[Tensor]] = {}
        below: dict[str, nn.Module] = {}
        for path, module in level.items():
            candidates |= {
                path + name: [p]
                for name, p in module.named_parameters(recurse=False)
                if name in _USUAL and _is_matrix(p)
            }
            for name, child in module.named_children():
                child = _unwrapped(child)
                if not isinstance(module, nn.ModuleList | nn.Sequential):
                    below[f"{path}{name}."] = child
                # Some classifiers, and heads of several tasks, end in a convolution with a kernel of one pixel.
                kinds = LAYERS if name == "classifier" and not path else nn.Linear
                if isinstance(child, _LISTS) and _SEVERAL.search(name):
                    heads = {f"{path}{name}.{key}": _layers(one)[-1:] for key, one in child.named_children()}
                    candidates |= {head: _tensors(layers) for head, layers in heads.items() if layers}
                # Blocks may call a whole module "output": below the top, only single layers count.
                elif name in _USUAL and (layers := _layers(child, kinds)[-1:]) and (not path or layers == [child]):
                    candidates[path + name] = _tensors(layers)
        if candidates:
            return candidates
        level = below
    return {}


def _outside_of_lists(module: nn.Module) -> Iterable[nn.Module]:
    """A module and all in it, but for what is in lists, as blocks are."""
    yield module
    for child in module.children() if not isinstance(module, nn.ModuleList) else ():
        yield from _outside_of_lists(child)


def _layers(module: nn.Module, kinds: type | tuple[type, ...] = LAYERS) -> list[nn.Module]:
    return [m for m in module.modules() if isinstance(m, kinds) or _is_linear(m)]


def _tensors(layers: Iterable[nn.Module]) -> list[Tensor]:
    return [p for layer in layers for p in layer.parameters()]  # of a parametrized layer, too


def _is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer, PyTorch's or of a class that has a matrix and no parts."""
    weight = getattr(module, "weight", None)
    other = not [*module.children()] and isinstance(weight, Tensor) and weight.ndim == 2 and not table_of(module)
    return isinstance(module, nn.Linear) or other


def _is_matrix(x: Tensor) -> bool:
    return x.ndim > 1 and x.shape[0] > 1


def _unwrapped(model: nn.Module) -> nn.Module:
    """What DDP, torch.compile and other wrappers hold."""
    names = [name for name, _ in model.named_children()]
    if len(names) == 1 and names[0] in (*WRAPPERS, "module") and not [*model.parameters(recurse=False)]:
        return _unwrapped(getattr(model, names[0]))
    return model


def table_of(module: nn.Module) -> tuple[int, ...]:
    """The rows and columns of a table of rows, PyTorch's or another's, such as a tensor-parallel library's; else ()."""
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return module.num_embeddings, module.embedding_dim
    rows = getattr(module, "weight", None)
    by_name = type(module).__name__.endswith("Embedding") and getattr(rows, "ndim", 0) == 2
    return tuple(rows.shape) if rows is not None and by_name and not list(module.children()) else ()
