"""Sorts a model's tensors into matrices, embeddings, output heads and vectors."""

import math
import operator
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

from ...geometry import Geometry
from ..ranks.dtensors import are_flat_pieces
from .heads import CONVOLUTIONS, LAYERS, TRANSPOSED_CONVOLUTIONS, output_tensors, table_of

# Tensors outside any layer that are looked up or added, not multiplied: position and class tokens, bias tables.
_LOOKED_UP = re.compile(
    r"(^|_)(pos(_[hwt])?|positions?|embeds?|embeddings?|tokens?|tables?|rel|quer(y|ies)|latents?(_\dd)?|bias(es)?|bias_[kuv])$"
    r"|^(position|positional)_"
    # PEFT's, each in a container: new rows of an embedding, and the factor of an update that is looked up.
    r"|(^|_)tokens_delta$|^lora_embedding_A$",
    re.IGNORECASE,
)
_KERNELS = (3, 5, 7)  # sides of the kernels of convolutions that are written by hand, or exported
# Tensors that multiply entry by entry, such as the decays of a state-space model.
_ENTRYWISE = re.compile(r"(^|_)scales?$|^(A_logs?|Ds?)$")
_CONTAINERS = (nn.ParameterList, nn.ParameterDict)
# Their weights may have several dimensions, and multiply entry by entry.
_NORMS = (nn.LayerNorm, nn.RMSNorm)
# Linear layers, by class name, that store their weight as (in, out), such as transformers' for GPT-2.
_TRANSPOSED = {"Conv1D"}

# PEFT's parameters that are no matrices: rotations, reflections, logits, kernels and scales.
_NO_MATRICES = re.compile(
    r"(^|\.)(oft_(embedding_)?R|boft_[Rs]|hra_u|vblora_\w+|c3a_kernel|randlora_(lambda|gamma)|road_(theta|alpha))(\.|$)"
)
_NO_OUTPUTS = re.compile(r"(^|\.)lora_A\.")  # whose rows are a layer's ranks, and never in blocks

USE_FSDP2 = "shard the model with FSDP2 (torch.distributed.fsdp.fully_shard), whose tensors keep their shapes"

G = TypeVar("G", bound=Geometry)
Named = tuple[str, Parameter]


@dataclass
class Parts:
    """A model's tensors by role, each once, as (name, tensor).

    Attributes:
        matrices: weights of hidden linear and convolution layers, and matrices outside any layer.
        depthwise: kernels of grouped convolutions whose groups have a single row or column.
        stacks: tensors of three or more dimensions outside any layer, such as weights of experts: (…, m, n).
        heads: weights of output layers that are not tied to an embedding.
        embeddings: embedding tables (and heads tied to them), position and class tokens, bias tables.
        vectors: tensors of fewer than two dimensions, matrices with a single row or column, and tensors that multiply
            entry by entry.
        transposed: names of the matrices and stacks that are stored as (in, out) instead of (out, in), such as the
            kernels of transposed convolutions.
        groups: the number of groups of grouped convolutions' kernels, by name. Each group is a matrix of its own.
        undecayed: names of the tensors that the model exempts from weight decay, by ``no_weight_decay()`` or
            ``no_weight_decay_keywords()`` as timm's, or by ``_no_weight_decay`` of the tensor as Mamba's.
    """

    matrices: list[Named] = field(default_factory=list)
    depthwise: list[Named] = field(default_factory=list)
    stacks: list[Named] = field(default_factory=list)
    heads: list[Named] = field(default_factory=list)
    embeddings: list[Named] = field(default_factory=list)
    vectors: list[Named] = field(default_factory=list)
    transposed: set[str] = field(default_factory=set)
    groups: dict[str, int] = field(default_factory=dict)
    undecayed: set[str] = field(default_factory=set)

    def by_decay(self, groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """These parameter groups without empty ones, and with groups apart for what the model exempts from decay."""
        split = []  # groups in the given order, each before what it exempts
        for group in groups:
            exempt = self.undecayed if group["weight_decay"] else set()
            decayed = [one for one in group["params"] if one[0] not in exempt]
            others = [one for one in group["params"] if one[0] in exempt]
            plain = {**group, "weight_decay": 0.0, "role": f"{group['role']}, no decay"}
            split += [{**one, "params": named} for one, named in ((group, decayed), (plain, others)) if named]
        return split


def partition(model: nn.Module, heads: Sequence[str] | None = None) -> Parts:
    """Sort a model's tensors by role, frozen ones included, because they may be unfrozen later.

    The output layer is the one that the model names itself (transformers' ``get_output_embeddings``, timm's
    ``get_classifier``). If it names none, it is the outermost layer or bare matrix called lm_head, head, fc, output,
    classifier or similar, outside of lists of blocks; if a module of such a name contains several layers, their last.
    Without such a name, it is the last linear layer with as many outputs as a table of embeddings has rows, or that of
    an `nn.Sequential`. A linear layer of your own class counts, too. Where several layers may be it, as in two models
    side by side, an error asks for ``heads``. A tensor in an `nn.ParameterList` or `nn.ParameterDict` goes by the name
    of that, too.

    Args:
        model: the model.
        heads: regular expressions for the names of the output layers' weights, instead of these rules; an empty list
            means that there are none.

    Raises:
        TypeError: it is no model.
        ValueError: no tensor of the model requires a gradient, a lazy one has no shape yet, FSDP1 has cut the tensors,
            the model was scripted, traced or exported, which leaves no layer of its class, several layers may be the
            output layer, or a pattern of ``heads`` matches no name.

    Example:
        >>> import torch
        >>> from autowarm.optim import partition
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
        >>> parts = partition(model)
        >>> [name for name, _ in parts.matrices], [name for name, _ in parts.heads]
        (['0.weight'], ['2.weight'])
    """
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise TypeError(f"pass the model, not its parameters: a torch.nn.Module is needed, got a {kind}")
    if lazy := [name for name, p in model.named_parameters() if is_lazy(p)]:
        raise ValueError(f"{lazy[0]} has no shape yet: call the model on a batch before you build the optimizer")
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"{type(model).__name__} has no tensor that requires a gradient: there is nothing to train")
    if are_flat_pieces(model.parameters()):
        raise ValueError(
            f"FSDP1 (FullyShardedDataParallel) has cut the tensors of the model into flat pieces, of which nobody can "
            f"tell whether they were matrices: {USE_FSDP2}"
        )
    for name, module in model.named_modules():
        if _is_exported(model, module):
            raise ValueError(
                f"{name or 'the model'} was scripted, traced or exported ({type(module).__name__}): build the "
                "optimizer from the eager model, whose parameters these are"
            )
    # Output layers, and tables that are looked up: by identity, because tied tensors have several names
    if heads is None:
        head_ids = {id(p) for p in output_tensors(model)}
    else:
        heads = [heads] if isinstance(heads, str) else heads
        check_patterns("heads", heads, model)
        head_ids = {id(p) for name, p in model.named_parameters() if any(re.search(one, name) for one in heads)}
    embedding_ids = {id(p) for m in model.modules() if table_of(m) for p in m.parameters()}
    # Each tensor once, under its first name
    parts = Parts(undecayed=_undecayed(model))
    modules = dict(model.named_modules(remove_duplicate=False))
    visited: set[int] = set()
    names = {name for name, _ in model.named_parameters()}
    for name, owner, p in _with_owners(model):
        # Quantised weights are integers, which no optimizer updates.
        if id(p) in visited or not (p.is_floating_point() or p.is_complex()):
            continue
        visited.add(id(p))
        called = _names_of(name, modules)
        keys = name.replace("query", "key").replace("queries", "keys")  # beside which attention has its queries
        looked_up = any(map(_LOOKED_UP.search, called)) and (keys == name or keys not in names)
        groups = owner.groups if isinstance(owner, CONVOLUTIONS) and p.shape == _kernel_shape(owner) else 1
        stored_so = type(owner).__name__ in _TRANSPOSED or isinstance(owner, TRANSPOSED_CONVOLUTIONS)
        flipped = stored_so or (p.ndim > 2 and getattr(owner, "is_transposed", False) is True)
        layer = isinstance(owner, LAYERS) or type(owner).__name__ in _TRANSPOSED
        # The matrix (out, rest) of a layer, or those that a tensor outside any layer stacks
        sides = (p.shape[:1].numel(), p.shape[1:].numel()) if layer else p.shape[-2:]
        if p.ndim < 2 or isinstance(owner, _NORMS) or _NO_MATRICES.search(name):
            parts.vectors.append((name, p))
        elif id(p) in embedding_ids or (not layer and looked_up):
            parts.embeddings.append((name, p))
        elif groups > 1 and (p.shape[0] == groups or p.shape[1:].numel() == 1):
            parts.depthwise.append((name, p))
        elif min(sides) <= 1 or (not layer and any(map(_ENTRYWISE.search, called))):
            parts.vectors.append((name, p))
        elif id(p) in head_ids:
            parts.heads.append((name, p))
        elif not layer and p.ndim > 2 and not (p.ndim == 4 and p.shape[0] > 1 and p.shape[2] == p.shape[3] in _KERNELS):
            # A leading 1 is for broadcasting over a batch, because nobody stores a single expert as a stack.
            (parts.embeddings if p.shape[0] == 1 else parts.stacks).append((name, p))
        else:
            parts.matrices.append((name, p))
        if flipped and p.ndim >= 2:
            parts.transposed.add(name)
        if groups > 1:
            parts.groups[name] = groups
    return parts


def by_reading(
    parts: Parts, named: Iterable[Named], geometry: G, blocks: Mapping[str, int | Sequence[int]] | None = None
) -> dict[G, list[Named]]:
    """Group tensors of a model by the geometry that reads each as the matrices that its layer multiplies by.

    ``blocks`` maps regular expressions to blocks of rows, see `autowarm.Muon.from_model`.
    """
    by_geometry: dict[G, list[Named]] = defaultdict(list)
    # Groups of convolutions are blocks of their own, and given blocks come on top.
    stacks = {name for name, _ in parts.stacks}
    for name, p in named:
        matching = (one for pattern, one in (blocks or {}).items() if re.search(pattern, name))
        given = 1 if _NO_OUTPUTS.search(name) else next(matching, 1)
        given = tuple(given) if isinstance(given, Sequence) else operator.index(given)
        stacked, transposed = name in stacks, name in parts.transposed
        groups = parts.groups.get(name, 1)
        turned = transposed and not stacked and p.ndim > 2
        if (given != 1 and turned) or (isinstance(given, tuple) and groups > 1):
            raise ValueError(
                f"blocks: {name} is the kernel of a {'transposed' if turned else 'grouped'} convolution, whose blocks "
                "are its groups: choose a pattern that does not match it"
            )
        sizes = given if isinstance(given, tuple) else math.lcm(given, groups)
        by_geometry[geometry.reading(stacked=stacked, blocks=sizes, transposed=transposed)].append((name, p))
    return by_geometry


def check_blocks(blocks: Mapping[str, int | Sequence[int]], model: nn.Module, parts: Parts) -> None:
    """Raise ValueError if these are no blocks of a model's matrices."""
    given: Any = blocks.values() if isinstance(blocks, Mapping) else [None]
    if not all(type(one) in (tuple, list) or (hasattr(one, "__index__") and one >= 0) for one in given):
        raise ValueError(
            f'blocks maps patterns to numbers of blocks, such as {{"qkv": 3}}, or to tuples of sizes, got {blocks!r}'
        )
    check_patterns("blocks", blocks, model)
    for pattern in blocks:
        if not any(re.search(pattern, name) for name, _ in parts.matrices + parts.stacks):
            raise ValueError(f"blocks: {pattern!r} matches none of the matrices that Muon steps")


def _is_exported(model: nn.Module, module: nn.Module) -> bool:
    """Whether a module with tensors was scripted, traced, exported or unflattened."""
    if not [*module.parameters(recurse=False)]:
        return False
    kinds = {cls.__name__ for cls in type(module).__mro__}
    # What torch.export leaves of a layer is a bare module.
    graph = type(module) is nn.Module and any(cls.__name__ == "GraphModule" for cls in type(model).__mro__)
    return graph or not kinds.isdisjoint({"ScriptModule", "InterpreterModule", "UnflattenedModule"})


def _undecayed(model: nn.Module) -> set[str]:
    tensors = dict(model.named_parameters(remove_duplicate=False))
    exempt = {name for name, p in tensors.items() if getattr(p, "_no_weight_decay", False)}  # as Mamba marks them
    for path, module in model.named_modules():
        asked = (getattr(module, ask, None) for ask in ("no_weight_decay", "no_weight_decay_keywords"))
        exact, parts = ([*ask()] if callable(ask) else [] for ask in asked)  # timm's: whole names, and parts of names
        if exact or parts:
            inside = {name: name.removeprefix(f"{path}.") for name in tensors if f"{name}.".startswith(path)}
            exempt |= {name for name, tail in inside.items() if tail in exact or any(part in tail for part in parts)}
    return exempt


def check_patterns(option: str, patterns: Iterable[str], model: nn.Module) -> None:
    """Raise ValueError if a regular expression given under this option matches no parameter's name."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    try:
        lost = [pattern for pattern in patterns if not any(re.search(pattern, name) for name in names)]
    except (TypeError, re.error) as error:
        got = " ".join(repr(patterns).split())  # a model's has lines
        raise ValueError(f"{option} takes regular expressions for names, got {got} ({error})") from None
    if lost:
        raise ValueError(f"{option}: {lost[0]!r} matches none of the parameters' names, such as {names[0]!r}")


def _with_owners(model: nn.Module) -> Iterator[tuple[str, nn.Module, Parameter]]:
    """Yield every parameter's name, the module that it is a weight of (even if parametrized), and the parameter."""
    modules = dict(model.named_modules())
    for path, module in modules.items():
        owner = modules[path.rpartition(".parametrizations.")[0]] if isinstance(module, ParametrizationList) else module
        for own_name, p in module.named_parameters(prefix=path, recurse=False):
            yield own_name.removeprefix("."), owner, p


def _names_of(name: str, modules: Mapping[str, nn.Module]) -> list[str]:
    """Return a tensor's own name and those of the lists and dictionaries of tensors that it is in."""
    path, _, last = name.rpartition(".")
    names = [last]  # the tensor's, then its containers' from inside out
    while isinstance(modules[path], _CONTAINERS) and path:
        path, _, last = path.rpartition(".")
        names.append(last)
    return names


def _kernel_shape(layer: Any) -> tuple[int, ...]:
    """Return the shape of a convolution's kernel; its other tensors are scales and biases."""
    first, second = layer.out_channels, layer.in_channels  # of (out, in/groups, *k)
    if isinstance(layer, TRANSPOSED_CONVOLUTIONS):
        first, second = second, first
    return (first, second // layer.groups, *layer.kernel_size)
