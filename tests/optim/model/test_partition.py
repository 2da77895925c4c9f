"""Where each tensor of real models goes."""

import copy
import re
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from autowarm import Lion, Muon
from autowarm.geometry import Spectral
from autowarm.optim import partition
from autowarm.others import kappa_of
from tests.cases import each


def llama(tied: bool) -> nn.Module:
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    transformers = pytest.importorskip("transformers")  # which torch and numpy alone do without
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, tie_word_embeddings=tied)
    return transformers.LlamaForCausalLM(config)


def names(part: list[tuple[str, nn.Parameter]]) -> set[str]:
    return {name for name, _ in part}


class Held(nn.Module):
    """Modules and tensors by name."""

    def __init__(self, **members: nn.Module | torch.Tensor) -> None:
        super().__init__()
        for name, one in members.items():
            setattr(self, name, nn.Parameter(one) if isinstance(one, torch.Tensor) else one)


class Holder(Held):
    """Two hidden layers, and what is given."""

    def __init__(self, **members: nn.Module | torch.Tensor) -> None:
        super().__init__(body=nn.Linear(4, 6), more=nn.Linear(6, 6), **members)


class ParallelEmbedding(nn.Module):
    """As a tensor-parallel library's: no `nn.Embedding`, and its weight has the name of any layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(50, 8))


class Projection(nn.Module):
    """A linear layer of one's own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))


def quantised() -> nn.Module:
    model = chain(4, 4, 4, 4)
    model[0].weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.uint8), requires_grad=False)
    return model


def chain(*sizes: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(*pair, bias=False) for pair in pairwise(sizes)))


class Mixed(Held):
    """A layer of each kind, and tensors outside any."""

    def __init__(self) -> None:
        tokens = {"pos_embed": torch.zeros(1, 4, 8), "cls_token": torch.zeros(1, 1, 8)}
        tables = {"relative_position_bias_table": torch.zeros(9, 2), "experts": torch.zeros(3, 8, 8)}
        layers = {"attn": nn.MultiheadAttention(8, 2), "patch": nn.Conv2d(3, 8, 2), "norm": nn.LayerNorm(8)}
        super().__init__(**tokens, **tables, **layers, head=nn.Linear(8, 5))


def bare(**members: torch.Tensor) -> nn.Module:
    return Held(**members, mix=nn.Conv2d(6, 6, 1, bias=False))


two_outputs = nn.ModuleDict({"output": nn.Linear(4, 4, bias=False)})
# A model, and the names of some roles; all others' are left open.
ROLES: list[tuple[Callable[[], nn.Module], dict[str, str]]] = [
    (Mixed, {"embeddings": "pos_embed cls_token relative_position_bias_table", "stacks": "experts",
             "matrices": "attn.in_proj_weight attn.out_proj.weight patch.weight", "heads": "head.weight"}),
    (quantised, {"matrices": "1.weight", "heads": "2.weight"}),
    (lambda: bare(layer_scale=torch.ones(6, 1, 1), temperature=torch.ones(1, 6, 1), summary=torch.zeros(1, 4, 6)),
     {"vectors": "layer_scale temperature", "embeddings": "summary", "matrices": "mix.weight", "stacks": ""}),
    (lambda: Held(token_mixing=torch.zeros(4, 4), compose=torch.zeros(4, 4), score=nn.Linear(4, 1, bias=False),
                  blocks=nn.ModuleList([copy.deepcopy(two_outputs), two_outputs])),
     {"matrices": "token_mixing compose blocks.0.output.weight blocks.1.output.weight", "vectors": "score.weight"}),
    (lambda: Held(block=two_outputs, head=nn.Linear(4, 5)),
     {"heads": "head.weight", "matrices": "block.output.weight"}),
    (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm([2, 3, 6]), nn.RMSNorm([3, 6]), nn.Linear(6, 2)),
     {"vectors": "0.bias 1.weight 1.bias 2.weight 3.bias", "stacks": "", "embeddings": ""}),
    (lambda: Holder(extras=tensors(["pos_embed", "mix"])),
     {"embeddings": "extras.pos_embed", "matrices": "extras.mix body.weight more.weight"}),
    (lambda: Held(tok=ParallelEmbedding(), body=nn.Linear(8, 8)),
     {"embeddings": "tok.weight", "matrices": "body.weight"}),
    # The output of a chain, a wrapper and a classifier.
    (lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.LogSoftmax(-1)),
     {"heads": "3.weight"}),
    (lambda: nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), *chain(8, 8, 2))), {"heads": "1.2.weight"}),
    (lambda: Held(a=nn.Conv2d(3, 8, 3), classifier=chain(8, 8, 2)), {"heads": "classifier.1.weight"}),
    (lambda: Held(a=nn.Conv2d(3, 8, 3), classifier=nn.Sequential(nn.Conv2d(8, 2, 1), nn.ReLU())),
     {"heads": "classifier.0.weight"}),
    (lambda: nn.Sequential(*chain(12, 32, 5), nn.BatchNorm1d(5)), {"heads": "1.weight"}),
    (lambda: nn.Sequential(*(Held(body=nn.Linear(4, 8), head=nn.Linear(8, 4)) for _ in range(2))),
     {"heads": "1.head.weight"}),
    (lambda: Holder(extras=tensors(["W_query", "W_key"])),
     {"embeddings": "", "matrices": "extras.W_query extras.W_key body.weight more.weight"}),
    (lambda: bare(kernel=torch.ones(8, 4, 3, 3), experts=torch.ones(2, 4, 8, 8)),
     {"matrices": "kernel mix.weight", "stacks": "experts"}),
    (lambda: nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4)), {"heads": ""}),
    (lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4)), {"heads": ""}),
    # Output layers that are no `nn.Linear`, or have no usual name but the width of a vocabulary.
    (lambda: Holder(lm_head=Projection(6, 5)), {"heads": "lm_head.weight"}),
    (lambda: Holder(classifier=nn.Sequential(nn.LayerNorm(6), Projection(6, 5))), {"heads": "classifier.1.weight"}),
    (lambda: nn.Sequential(nn.Linear(4, 6), Projection(6, 5)), {"heads": "1.weight"}),
    (lambda: Holder(head=torch.ones(6, 5)), {"heads": "head"}),
    (lambda: Holder(net=Holder(logits=torch.ones(6, 5)), score=torch.ones(6)), {"heads": "net.logits"}),
    (lambda: Holder(wte=nn.Embedding(50, 6), unembed=nn.Linear(6, 50, bias=False), gate=nn.Linear(6, 6)),
     {"heads": "unembed.weight"}),
    (lambda: Holder(wte=ParallelEmbedding(), out=nn.Sequential(nn.LayerNorm(6), Projection(6, 50))),
     {"heads": "out.1.weight"}),
    (lambda: Holder(wte=nn.Embedding(50, 6), first=nn.Linear(6, 50), last=nn.Linear(50, 50)), {"heads": "last.weight"}),
    (lambda: Holder(wte=nn.Embedding(8, 6), blocks=nn.ModuleList([nn.Sequential(*chain(6, 8, 6))])), {"heads": ""}),
    (lambda: Holder(wte=nn.Embedding(6, 6)), {"heads": ""}),
    # Hidden layers in a list are no heads, unless it has the name of one.
    (lambda: Holder(layers=nn.ModuleList(chain(6, 6, 6, 2))), {"heads": ""}),
    (lambda: Holder(fc=nn.ModuleList(chain(6, 6, 6, 2))), {"heads": "fc.2.weight"}),
]  # fmt: skip


@each(("make", "roles"), ROLES)
def test_the_roles_of_a_models_tensors(make: Callable[[], nn.Module], roles: dict[str, str]) -> None:
    parts = partition(make())
    assert {role: names(getattr(parts, role)) for role in roles} == {
        role: {*listed.split()} for role, listed in roles.items()
    }
    assert not partition(make(), heads=[]).heads
    assert not names(partition(make(), heads=["(weight|head|logits)$"]).matrices) & names(parts.heads)


@each("tied", [True, False])
def test_llama(tied: bool) -> None:
    model = llama(tied)
    parts = partition(model)
    assert len(parts.matrices) == 2 * 7
    assert all("proj" in name for name in names(parts.matrices))
    assert names(parts.embeddings) == {"model.embed_tokens.weight"}
    assert names(parts.heads) == (set() if tied else {"lm_head.weight"})
    assert len(parts.vectors) == 2 * 2 + 1
    assert sum(map(len, vars(parts).values())) == len(list(model.parameters()))
    # A head that is tied is the embedding.
    assert names(partition(model, heads="lm_head").heads) == (set() if tied else {"lm_head.weight"})
    for optimizer in (Muon, Lion):  # weights of linear layers alone decay
        groups = optimizer.from_model(model, lr=1e-3, weight_decay=0.1).param_groups
        decayed = {name for group in groups if group["weight_decay"] for name in group["param_names"]}
        assert decayed == names(parts.matrices) | names(parts.heads)


def test_a_tensor_frozen_at_first_is_trained_once_it_thaws() -> None:
    model = chain(3, 3, 3, 3)
    model[0].requires_grad_(False)
    opt = Muon.from_model(model, lr=0.1)
    assert kappa_of(opt, Spectral()) == 6  # of what is trained now
    before = model[0].weight.detach().clone()
    for thaws in (False, True):
        model[0].requires_grad_(thaws)
        model(torch.ones(2, 3)).sum().backward()
        opt.step()
        assert torch.equal(model[0].weight, before) != thaws


def test_gpt2s_layers_are_known_to_be_kept_as_in_out() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 20, "n_positions": 8}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    fused, plain, *_ = Muon.from_model(model, blocks={"c_attn": np.int64(3)}).param_groups
    # (in, out) = (8, 24): queries, keys and values lie side by side.
    assert fused["param_names"] == ["transformer.h.0.attn.c_attn.weight"]
    assert (fused["role"], plain["role"]) == ("matrices in 3 blocks, kept as (in, out)", "matrices, kept as (in, out)")
    assert [(g["geometry"].blocks, g["geometry"].transposed) for g in (fused, plain)] == [(3, True), (1, True)]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.body, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.emb(x)))


TOKENS = torch.zeros(2, dtype=torch.long)
EXPORTED: list[Callable[[], Any]] = [
    lambda: nn.ModuleDict({"net": torch.jit.script(Small())}),
    lambda: torch.export.export(Small(), (TOKENS,)).module(),
    lambda: torch.export.unflatten(torch.export.export(Small(), (TOKENS,))),
]


@each("make", EXPORTED)
def test_what_has_no_layers_of_their_class_any_more_is_refused(make: Callable[[], Any]) -> None:
    with warnings.catch_warnings(action="ignore"):  # torch.jit is deprecated, and in use
        model = make()
    with pytest.raises(ValueError, match="scripted, traced or exported .*: build the optimizer from the eager model"):
        Lion.from_model(model)


def test_a_graph_of_layers_and_a_scripted_function_are_read_as_usual() -> None:
    assert names(partition(torch.fx.symbolic_trace(Small())).heads) == {"head.weight"}
    with warnings.catch_warnings(action="ignore"):
        model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.ReLU()), nn.Linear(4, 2))
    assert names(partition(model).heads) == {"2.weight"}


class Exempting(Small):
    """As timm's models and Mamba's say what does not decay."""

    def __init__(self, exact: set[str], parts: set[str], marked: str = "") -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.no_weight_decay, self.no_weight_decay_keywords = (lambda: exact), (lambda: parts)
        if marked:
            self.get_parameter(marked)._no_weight_decay = True


@each("prefix", ["", "net."])
@each(
    ("exempt", "wanted"),
    [
        (({"body.weight", "emb.weight"}, set()), {"body.weight", "emb.weight"}),
        ((set(), {"mlp"}), {"mlp.0.weight", "mlp.1.weight"}),
        (({"head.weight"}, {"0.w"}, "mlp.1.weight"), {"head.weight", "mlp.0.weight", "mlp.1.weight"}),
    ],
)
def test_what_a_model_exempts_does_not_decay(prefix: str, exempt: Any, wanted: set[str]) -> None:
    model: nn.Module = Exempting(*exempt)
    opt = Muon.from_model(nn.ModuleDict({"net": model}) if prefix else model, adamw_weight_decay=0.2)
    decays = {name: group["weight_decay"] for group in opt.param_groups for name in group["param_names"]}
    weights = {
        f"{prefix}{name}" for name in ("body.weight", "head.weight", "mlp.0.weight", "mlp.1.weight", "emb.weight")
    }
    assert {name for name in weights if not decays[name]} == {prefix + name for name in wanted}
    assert len(opt.param_groups) == len({(group["role"], group["weight_decay"]) for group in opt.param_groups})


@each("kind", ["OFTConfig", "BOFTConfig", "VBLoRAConfig", "C3AConfig", "RandLoraConfig", "HRAConfig", "LoraConfig"])
def test_factors_of_adapters_that_are_no_matrices_go_to_adamw(kind: str) -> None:
    peft = pytest.importorskip("peft")
    sizes = {"OFTConfig": {"oft_block_size": 4, "r": 0}, "BOFTConfig": {"boft_block_size": 4},
             "C3AConfig": {"block_size": 4}, "VBLoRAConfig": {"vector_length": 4, "num_vectors": 8}}  # fmt: skip
    options = {"r": 2} | sizes.get(kind, {}) if kind not in ("BOFTConfig", "C3AConfig") else sizes[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), getattr(peft, kind)(
            target_modules=["0", "1"], **options))  # fmt: skip
    trained = {name for name, p in model.named_parameters() if p.requires_grad and p.ndim > 1}
    parts = partition(model, heads=[])
    assert trained
    assert trained <= (names(parts.matrices) if kind == "LoraConfig" else names(parts.vectors))


def lazy() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.LazyLinear(8), nn.Linear(8, 2))


@each(
    ("do", "error", "message"),
    [
        (lambda: partition(nn.Linear(3, 3).requires_grad_(False)), ValueError, "nothing to train"),
        (lambda: partition([*nn.Linear(3, 3).parameters()]), TypeError, "pass the model, not its parameters.* a list"),
        (lambda: Muon.from_model(nn.Embedding(3, 3)), ValueError, "at least one hidden matrix"),
        (lambda: Muon.from_model(lazy()), ValueError, "1.weight has no shape yet: call the model on a batch"),
        (lambda: Muon.from_model(chain(3, 3, 3), blocks={"weight": 3, "bias|norm": 2}), ValueError,
         "blocks: .bias.norm. matches none of the"),
        (lambda: Muon.from_model(nn.ModuleDict({"wte": nn.Embedding(4, 4), "mix": nn.Linear(4, 4)}), blocks={"wte": 2}),
         ValueError, "none of the matrices that Muon steps"),
        (lambda: Muon.from_model(chain(3, 3, 3), blocks=3), ValueError, "blocks maps patterns to numbers of"),
        (lambda: Muon.from_model(chain(3, 3, 3), blocks={"weight": "3"}), ValueError, "blocks maps patterns to"),
        (lambda: partition(chain(3, 3), heads=["lm_haed"]), ValueError, "heads: 'lm_haed' matches none"),
    ],
)  # fmt: skip
def test_what_cannot_be_sorted_is_refused(do: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        do()


def tensors(keys: list[str] | None, inside: bool = False) -> nn.Module:
    """Two matrices in a list, or in a dictionary with these keys, which may lie in another list."""
    two = [nn.Parameter(torch.ones(4, 6)) for _ in range(2)]
    members = nn.ParameterList(two) if keys is None else nn.ParameterDict(dict(zip(keys, two, strict=True)))
    return nn.ParameterList([members]) if inside else members


# By role, names of tensors, or of what contains them.
NAMES = {
    "embeddings": "pos_embeds pos_embed cls_tokens queries bias_tables rel trainable_tokens_delta lora_embedding_A "
    "positional_codes",
    "vectors": "A_log A_logs D Ds layer_scale scales",
    "matrices": "experts weights lora_embedding_B token_mixing projections",
}


@each("keys", [None, ["default", "other"], ["0", "left"]])
@each("inside", [False, True])
@each(("role", "container"), [(role, name) for role in NAMES for name in NAMES[role].split()])
def test_a_tensor_in_a_container_goes_by_its_name(role: str, container: str, keys: list[str], inside: bool) -> None:
    parts = partition(Holder(**{container: tensors(keys, inside)}), heads=[])
    inner = f"{container}.0" if inside else container
    in_role = {name for name in names(getattr(parts, role)) if name.startswith(container)}
    assert in_role == {f"{inner}.{key}" for key in keys or ["0", "1"]}


def several(kind: type, deep: bool) -> nn.Module:
    def head(outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, outputs)) if deep else nn.Linear(6, outputs)

    heads = [head(outputs) for outputs in (2, 3, 4)]
    return nn.ModuleList(heads) if kind is nn.ModuleList else nn.ModuleDict(dict(zip("abc", heads, strict=True)))


def language_model(tied: bool = False) -> nn.Module:
    """As people write it by hand."""
    block = nn.ModuleDict({"up": nn.Linear(6, 12), "output": nn.Linear(12, 6)})
    model = Held(wte=nn.Embedding(48, 6), blocks=nn.ModuleList(copy.deepcopy(block) for _ in range(2)),
                 lm_head=nn.Linear(6, 48, bias=False))  # fmt: skip
    if tied:
        model.lm_head.weight = model.wte.weight  # type: ignore[union-attr, assignment]
    return model


# Models with several layers that may be the output, and those that the question names.
ASKED: list[tuple[Callable[[], nn.Module], str]] = [
    (lambda: Held(student=llama(False), teacher=llama(False)), "student.lm_head, teacher.lm_head"),
    (lambda: nn.ModuleDict({"a": language_model(), "b": language_model(tied=True)}), "a.lm_head, b.lm_head"),
    (lambda: Holder(output=nn.Linear(6, 3), score=nn.Linear(6, 4)), "output, score"),
    (lambda: Holder(head=nn.Linear(6, 3), logits=torch.ones(6, 4)), "logits, head"),
    *((lambda name=name: Holder(**{name: several(nn.ModuleList, deep=False)}), f"{name}.0, {name}.1")
      for name in ("head", "heads", "classifiers", "task_heads", "out_head")),
    (lambda: Holder(scores=several(nn.ModuleDict, deep=True)), "scores.a, scores.b"),
    (lambda: nn.DataParallel(Holder(heads=nn.ModuleList(nn.Conv2d(8, n, 1) for n in (2, 3)))), "heads.0, heads.1"),
    (lambda: Held(net=Holder(heads=several(nn.ModuleList, deep=False))), "net.heads.0, net.heads.1"),
    (lambda: Holder(heads=nn.ModuleList([nn.Linear(6, 2)]), classifier=nn.Linear(6, 3)), "heads.0, classifier"),
]  # fmt: skip


@each(("make", "named"), ASKED)
def test_where_several_layers_may_be_the_output_the_user_is_asked(make: Callable[[], nn.Module], named: str) -> None:
    first, second = named.split(", ")
    with pytest.raises(ValueError, match="which is the output layer, .*Pass heads=") as asked:
        Muon.from_model(make())
    assert {first, second} <= set(re.split(r"[ ,?]+", str(asked.value)))
    pattern = rf"^(module\.)?{second}(\.|$)"
    chosen = partition(make(), heads=[pattern])
    assert all(re.search(pattern, name) for name in names(chosen.heads))
    assert not partition(make(), heads=[]).heads
    Lion.from_model(make())  # which has the same step for all


# Layers in lists of blocks, and parts that follow each other, none of which is called an output.
HIDDEN: list[Callable[[], nn.Module]] = [
    *(lambda name=name: Held(blocks=nn.ModuleList(Holder(**{name: nn.Linear(6, 3)}) for _ in range(2)))
      for name in ("head", "output", "fc")),
    lambda: Held(blocks=nn.ModuleList(Holder(heads=several(nn.ModuleList, deep=False)) for _ in range(2))),
    lambda: Held(encoder=nn.Sequential(*chain(20, 12, 4)), decoder=nn.Sequential(*chain(4, 12, 20))),
    lambda: Held(q=nn.Linear(8, 8), k=nn.Linear(8, 4), v=nn.Linear(8, 4), o=nn.Linear(4, 8)),
    lambda: nn.ModuleList(Held(scale=nn.Sequential(*chain(4, 8, 4)), shift=nn.Linear(4, 4)) for _ in range(2)),
]  # fmt: skip


@each("make", HIDDEN)
@each("beside", [False, True])
def test_layers_in_blocks_and_parts_are_hidden(make: Callable[[], nn.Module], beside: bool) -> None:
    model = Held(body=make(), classifier=nn.Linear(6, 2)) if beside else make()
    assert names(partition(model).heads) == ({"classifier.weight"} if beside else set())


def inside(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], nn.Module]:
    """As people compile or checkpoint each block by itself."""

    def wrap_children(model: nn.Module) -> nn.Module:
        for module in [*model.modules()]:
            for name, child in [*module.named_children()]:
                if not isinstance(child, nn.ModuleList | nn.ModuleDict):
                    setattr(module, name, wrap(child))
        return model

    return wrap_children


@each("make", [language_model, lambda: llama(False), lambda: chain(4, 8, 2)])
@each("wrap", [inside(torch.compile), inside(checkpoint_wrapper), lambda model: nn.DataParallel(torch.compile(model))])
def test_a_wrapper_changes_no_role(make: Callable[[], nn.Module], wrap: Callable[[nn.Module], nn.Module]) -> None:
    def roles(model: nn.Module) -> dict[str, list[str]]:
        inserted = r"(module|_orig_mod|_checkpoint_wrapped_module)\."
        parts = {role: named for role, named in vars(partition(model)).items() if isinstance(named, list)}
        return {role: [re.sub(inserted, "", name) for name, _ in named] for role, named in parts.items()}

    assert roles(wrap(make())) == roles(make())
