"""Finds the output layers of a model, and of the models that it holds beside each other."""

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain

from torch import nn

# What wrappers (torch.compile, FSDP, activation checkpointing) insert into the names of modules; DDP's is at the front.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# Usual names of output layers, for models that do not name theirs.
_HEADS = {
    "lm_head", "head", "heads", "output", "classifier", "classification_head", "fc", "fc_out", "embed_out", "score",
    "qa_outputs", "logits", "logits_proj",
}  # fmt: skip
# Those of them that, as a list, are more often layers that follow each other than heads side by side.
_CHAINS = {"fc"}
_SEVERAL = (nn.ModuleList, nn.ModuleDict)
# What lists and dictionaries of heads are called besides, unless the heads are attention's.
_SEVERAL_HEADS = re.compile(r"_(head|classifier)s?$")
# What whole models beside each other are called by their roles.
_ROLES = re.compile(
    r"^(student|teacher|policy|reference|ref|online|target|ema|actor|critic|generator|discriminator|gen|disc|net_?[dg]"
    r"|qf|q(?=_?\d|_?net))(_?(model|net|network|policy))?_?\d*s?$",
    re.IGNORECASE,
)
_OF_ATTENTION = re.compile(r"(^|_)(attn?|attention|self|cross|multi|[sc]a|mh?a|msa|q|k|v|query|key|value)_heads?$")
TRANSPOSED_CONVOLUTIONS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED_CONVOLUTIONS)
LAYERS = (nn.Linear, *CONVOLUTIONS)


def _unwrapped(model: nn.Module) -> nn.Module:
    """What DDP, torch.compile and other wrappers hold."""
    names = [name for name, _ in model.named_children()]
    if len(names) == 1 and names[0] in (*WRAPPERS, "module") and not [*model.parameters(recurse=False)]:
        return _unwrapped(getattr(model, names[0]))
    return model


def output_layers(model: nn.Module) -> list[nn.Module]:
    """The output layers of a model, and of the models that it holds side by side."""
    model = _unwrapped(model)
    named, of_its_own = _named_output_layers(model)
    follow = isinstance(model, nn.Sequential)  # and norms may follow the last layer
    trained = [one for one in map(_unwrapped, model.children()) if any(p.ndim > follow for p in one.parameters())]
    if len(trained) == 1 and not (of_its_own or isinstance(trained[0], nn.Linear | nn.ModuleList)):
        return output_layers(trained[0])
    models = [] if follow else _models_in(model, by_role=of_its_own)
    if of_its_own or models:
        return [*named, *chain.from_iterable(models)]
    if named or not (follow and trained):
        return named
    last = trained[-1]
    if isinstance(last, nn.Linear):
        # A model's only layer is not an output layer, because it does not follow another.
        before = (m for child in trained[:-1] for m in child.modules() if not table_of(m))
        return [last] if any(p.ndim > 1 for m in before for p in m.parameters(recurse=False)) else []
    return output_layers(last) if not isinstance(last, nn.ModuleList) else []


def _named_output_layers(model: nn.Module) -> tuple[list[nn.Module], bool]:
    """The layers that a model or their names say are its last (none: no name does), and whether they are its own."""
    for ask in ("get_output_embeddings", "get_classifier"):
        method = getattr(model, ask, None)
        answer = method() if callable(method) else None
        several = answer if isinstance(answer, (tuple, list)) else [answer]
        layers = [layer for one in several if isinstance(one, nn.Module) for layer in _last_layers(one)]
        if layers:
            return layers, True
    by_depth: dict[int, list[tuple[str, bool, list[nn.Module]]]] = defaultdict(list)
    # What a wrapper holds takes its name.
    named = {".".join(own for own in name.split(".") if own not in WRAPPERS): m for name, m in model.named_modules()}
    for name, module in named.items():
        place, _, own = name.rpartition(".")
        is_list = isinstance(module, _SEVERAL) and _are_heads(own)
        if own in _HEADS or is_list:
            # Some classifiers, and heads of several tasks, end in a convolution with a kernel of one pixel.
            kinds = LAYERS if (is_list or own == "classifier") and not place else nn.Linear
            layers = _last_layers(module, kinds) if is_list else _layers(module, kinds)[-1:]
            # Blocks inside a model may call a whole module "output"; only single layers count there.
            singles = [*map(_unwrapped, module.children())] if is_list else [module]
            if layers and (not place or layers == singles):
                by_depth[name.count(".")].append((name, is_list, layers))
    # Layers of such a name deeper inside, or one in every block, are hidden layers.
    depth = min(by_depth, default=None)
    return ([], False) if depth is None else (_side_by_side(by_depth[depth]), depth == 0)


def _models_in(model: nn.Module, *, by_role: bool) -> list[list[nn.Module]]:
    """The output layers of each of several whole models among a model's parts, or of those with the name of a role.

    A part whose outputs may go into another part is no whole model: a block, an encoder, a projector. A language model
    is one, because its outputs are those of its own vocabulary, and so is what has the name of a role.
    """
    parts = [*_parts(model)]
    # The widths of all tables and layers that an input may enter.
    takes = [{*(n for m in _entered(part) for n in (*table_of(m)[1:], _size(m, "in")) if n)} for _, part in parts]
    roles: list[list[nn.Module]] = []
    whole: list[list[nn.Module]] = []
    others: dict[int, list[nn.Module]] = {}
    for i, (name, part) in enumerate(parts):
        taken = set().union(*takes[:i], *takes[i + 1 :])
        role = bool(_ROLES.search(name))
        layers = output_layers(part) if role or not by_role else []
        if role and (layers or isinstance(part, nn.Linear)):
            roles.append(layers or [part])
        elif layers:
            every = _layers(part)
            tables = {rows for m in part.modules() for rows in table_of(m)[:1]}
            if tables & {_size(layer, "out") for layer in layers}:
                whole.append(layers)
            # A block may have a layer of such a name before its last one.
            elif not taken & {_size(layer, "out") for layer in (layers if {*every[-1:]} & {*layers} else every)}:
                others[i] = layers
    gives = {i: sum(_size(layer, "out") or 0 for layer in layers) for i, layers in others.items()}
    fused = any(sum(gives.values()) - gives.get(i, 0) in widths for i, widths in enumerate(takes))
    whole += [] if fused else others.values()
    return roles + (whole if roles or len(whole) > 1 else [])


def _parts(module: nn.Module, called: str = "") -> Iterator[tuple[str, nn.Module]]:
    """What a model holds, also in lists and dictionaries, by name; what a list holds has the list's."""
    for name, child in module.named_children():
        name, child = called if name.isdecimal() else name, _unwrapped(child)
        yield from _parts(child, name) if isinstance(child, _SEVERAL) else [(name, child)]


def _entered(part: nn.Module) -> Iterator[nn.Module]:
    """The modules that another part's outputs may enter: a conditioning enters in the middle, but not of a chain."""
    while isinstance(part, nn.Sequential) and (trained := [m for m in part if next(m.parameters(), None) is not None]):
        part = trained[0]
    return part.modules()


def _size(layer: nn.Module, end: str) -> int | None:
    sizes = (getattr(layer, f"{end}{what}", None) for what in ("_features", "_channels", "put_size"))
    return next((size for size in sizes if isinstance(size, int)), None)


def _are_heads(name: str) -> bool:
    """Whether a list or a dictionary of this name is one of heads."""
    usual = {name, name.removesuffix("s")} & (_HEADS - _CHAINS)
    return bool(usual or _SEVERAL_HEADS.search(name)) and not _OF_ATTENTION.search(name)


def _side_by_side(found: list[tuple[str, bool, list[nn.Module]]]) -> list[nn.Module]:
    """Choose the heads among layers at one depth: a single layer, or all heads of lists and a layer beside them."""
    if len({name.rpartition(".")[0] for name, *_ in found}) > 1:
        return []
    several = [layer for _, is_list, layers in found if is_list for layer in layers]
    # A layer called "fc" is more often what the heads read.
    chains = _CHAINS if several else ()
    single = [layers for name, is_list, layers in found if not is_list and name.rpartition(".")[2] not in chains]
    return several + (single[0] if len(single) == 1 else [])


def _last_layers(module: nn.Module, kinds: type | tuple[type, ...] = LAYERS) -> list[nn.Module]:
    """Return a module's last layer, or that of each module in a list or a dictionary of them."""
    if isinstance(module, _SEVERAL):
        return [layer for child in module.children() for layer in _last_layers(child, kinds)]
    return _layers(module, kinds)[-1:]


def _layers(module: nn.Module, kinds: type | tuple[type, ...] = LAYERS) -> list[nn.Module]:
    return [m for m in module.modules() if isinstance(m, kinds)]


def table_of(module: nn.Module) -> tuple[int, ...]:
    """The rows and columns of a table of rows, PyTorch's or another's, such as a tensor-parallel library's; else ()."""
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return module.num_embeddings, module.embedding_dim
    rows = getattr(module, "weight", None)
    by_name = type(module).__name__.endswith("Embedding") and getattr(rows, "ndim", 0) == 2
    return tuple(rows.shape) if rows is not None and by_name and not list(module.children()) else ()
