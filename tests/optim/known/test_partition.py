"""Where each tensor of real models goes."""

import warnings

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from autowarm import LMO, Lion, Muon
from autowarm.geometry import Spectral
from autowarm.optim import geometry_of, kappa_of, partition
from tests.cases import each


def llama(tied: bool) -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            tie_word_embeddings=tied,
        )
    )


def names(part: list[tuple[str, nn.Parameter]]) -> set[str]:
    return {name for name, _ in part}


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


def test_weight_decay_is_on_linear_layers_alone() -> None:
    for optimizer in (Muon, Lion):
        opt = optimizer.from_model(llama(tied=True), lr=1e-3, weight_decay=0.1)
        decayed = {n for g in opt.param_groups if g["weight_decay"] for n in g["param_names"]}
        spared = {n for g in opt.param_groups if not g["weight_decay"] for n in g["param_names"]}
        assert all("proj" in name for name in decayed)
        assert len(decayed) == 14
        assert "model.embed_tokens.weight" in spared
        assert sum("norm" in name for name in spared) == 5


def test_untied_head_decays_under_adamw() -> None:
    group = next(g for g in Muon.from_model(llama(tied=False)).param_groups if g["role"] == "output heads")
    assert group["algorithm"] == "adamw"
    assert group["weight_decay"] == 0.1


def test_tensors_outside_layers() -> None:
    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pos_embed = nn.Parameter(torch.zeros(1, 4, 8))
            self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
            self.relative_position_bias_table = nn.Parameter(torch.zeros(9, 2))
            self.experts = nn.Parameter(torch.zeros(3, 8, 8))
            self.attn = nn.MultiheadAttention(8, 2)
            self.patch = nn.Conv2d(3, 8, 2)
            self.norm = nn.LayerNorm(8)
            self.head = nn.Linear(8, 5)

    parts = partition(Vision())
    assert names(parts.embeddings) == {"pos_embed", "cls_token", "relative_position_bias_table"}
    assert names(parts.stacks) == {"experts"}
    assert names(parts.matrices) == {"attn.in_proj_weight", "attn.out_proj.weight", "patch.weight"}
    assert names(parts.heads) == {"head.weight"}


def test_a_tensor_frozen_at_first_is_trained_once_it_thaws() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    opt = Muon.from_model(model, lr=0.1)
    assert kappa_of(opt, Spectral()) == 6  # of what is trained now
    before = [p.detach().clone() for p in model.parameters()]
    model(torch.ones(2, 3)).sum().backward()
    opt.step()
    stayed = [torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)]
    assert stayed == [True, True, False, False, False, False]
    model[0].requires_grad_(True)
    model(torch.ones(2, 3)).sum().backward()
    opt.step()
    assert not any(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to train"):
        partition(nn.Linear(3, 3).requires_grad_(False))


def test_quantised_weights_are_left_to_their_library() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.uint8), requires_grad=False)
    parts = partition(model)
    assert names(parts.matrices) == {"1.weight"}


def test_weight_normed_kernels_are_matrices_and_their_scales_vectors() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older of the two is deprecated, and in use
        older = nn.utils.weight_norm(nn.Conv1d(64, 512, 3)), nn.utils.weight_norm(nn.Linear(512, 8))
    norm = nn.utils.parametrizations.weight_norm
    for layers in (older, (norm(nn.Conv1d(64, 512, 3)), norm(nn.Linear(512, 8)))):
        model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU())
        parts = partition(model, heads=[])
        assert sorted(tuple(p.shape) for _, p in parts.matrices) == [(8, 512), (512, 64, 3)]
        assert sorted(tuple(p.shape) for _, p in parts.vectors) == [(8,), (8, 1), (512,), (512, 1, 1)]
        assert not parts.stacks
        opt = Muon.from_model(model, heads=[])
        assert kappa_of(opt, geometry_of(opt)) == 192 + 8 + 1  # the linear layer's column counts


def test_scales_by_channel_are_vectors_and_what_a_batch_shares_is_looked_up() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer_scale = nn.Parameter(torch.ones(6, 1, 1))
            self.temperature = nn.Parameter(torch.ones(1, 6, 1))
            self.summary = nn.Parameter(torch.zeros(1, 4, 6))
            self.mix = nn.Conv2d(6, 6, 1)

    opt = Muon.from_model(Scaled(), lr=0.1)
    parts = partition(Scaled())
    assert names(parts.vectors) == {"layer_scale", "temperature", "mix.bias"}
    assert names(parts.embeddings) == {"summary"}
    assert [group["weight_decay"] for group in opt.param_groups] == [0.1, 0.0]


@pytest.mark.parametrize(
    ("model", "head"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.LogSoftmax(-1)), "3.weight"),
        (nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))), "1.2.weight"),
        (nn.ModuleDict({"net": nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))}), "net.1.weight"),
        (nn.ModuleDict({"body": nn.Linear(4, 8), "fc": nn.Linear(8, 2)}), "fc.weight"),
        (
            nn.ModuleDict({"a": nn.Conv2d(3, 8, 3), "classifier": nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))}),
            "classifier.1.weight",
        ),
        (
            nn.ModuleDict({"a": nn.Conv2d(3, 8, 3), "classifier": nn.Sequential(nn.Conv2d(8, 2, 1), nn.ReLU())}),
            "classifier.0.weight",
        ),
        (nn.Linear(4, 4), None),
        (nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4)), None),
        (nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])}), None),
    ],
    ids=lambda x: "" if isinstance(x, nn.Module) else str(x),
)
def test_the_output_layer_of_a_chain_a_wrapper_and_a_classifier(model: nn.Module, head: str | None) -> None:
    parts = partition(model)
    assert names(parts.heads) == ({head} if head else set())
    assert not partition(model, heads=[]).heads
    assert names(partition(model, heads=[r"weight$"]).matrices) == set()


def test_gpt2s_layers_are_known_to_be_kept_as_in_out() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=20, n_positions=8))
    opt = Muon.from_model(model, lr=1.0, blocks={"c_attn": 3}, method="svd", radius="original", weight_decay=0.0)
    assert [group["role"] for group in opt.param_groups[:2]] == ["matrices in 3 blocks, kept as (in, out)",
                                                                 "matrices, kept as (in, out)"]  # fmt: skip
    layer, before = model.transformer.h[0], {n: p.detach().clone() for n, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    opt.step()
    # (in, out) = (8, 24): queries, keys and values lie side by side.
    fused = layer.attn.c_attn.weight.detach() - before["transformer.h.0.attn.c_attn.weight"]
    for block in fused.split(8, dim=1):
        torch.testing.assert_close(block.T @ block, torch.eye(8), atol=1e-4, rtol=0)
    # "original" is √(out/in) where there are more outputs than inputs, and 1 where there are fewer.
    up = layer.mlp.c_fc.weight.detach() - before["transformer.h.0.mlp.c_fc.weight"]
    down = layer.mlp.c_proj.weight.detach() - before["transformer.h.0.mlp.c_proj.weight"]
    torch.testing.assert_close(torch.linalg.svdvals(up), torch.full((8,), 2.0), atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.linalg.svdvals(down), torch.ones(8), atol=1e-4, rtol=0)


@each("method", ["svd", "newton-schulz", "polar-express"])
@each("stacked", [False, True])
def test_a_matrix_kept_transposed_steps_as_the_matrix_itself(method: str, stacked: bool) -> None:
    torch.manual_seed(0)
    shape = (3, 12, 8) if stacked else (12, 8)
    x, g = torch.randn(2, *shape, dtype=torch.float64)
    moved = []
    for transposed in (False, True):
        p = nn.Parameter((x.mT if transposed else x).clone().contiguous())
        p.grad = (g.mT if transposed else g).clone()
        geometry = Spectral("original", stacked=stacked, blocks=2, method=method, dtype=torch.float64,
                            transposed=transposed)  # fmt: skip
        LMO([p], lr=0.1, geometry=geometry, momentum=0.0).step()
        assert geometry.kappa(p.shape) == pytest.approx(36 if stacked else 12)
        moved.append((p.mT if transposed else p).detach())
        dual = geometry.dual(p.grad)
        torch.testing.assert_close(dual, -(p.grad * geometry.at_radius("original").lmo(p.grad)).sum(), rtol=0.3, atol=0)
    torch.testing.assert_close(*moved)


def test_muon_says_when_there_is_no_matrix() -> None:
    with pytest.raises(ValueError, match="at least one hidden matrix"):
        Muon.from_model(nn.Embedding(3, 3))


def test_names_that_only_look_alike_are_matrices() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token_mixing = nn.Parameter(torch.zeros(4, 4))
            self.compose = nn.Parameter(torch.zeros(4, 4))
            self.blocks = nn.ModuleList(nn.ModuleDict({"output": nn.Linear(4, 4)}) for _ in range(2))
            self.score = nn.Linear(4, 1, bias=False)

    parts = partition(Odd())
    assert names(parts.matrices) == {"token_mixing", "compose", "blocks.0.output.weight", "blocks.1.output.weight"}
    assert names(parts.vectors) == {"blocks.0.output.bias", "blocks.1.output.bias", "score.weight"}


def test_the_outermost_head_is_the_head() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.ModuleDict({"output": nn.Linear(4, 4)})
            self.head = nn.Linear(4, 5)

    parts = partition(Nested())
    assert names(parts.heads) == {"head.weight"}
    assert names(parts.matrices) == {"block.output.weight"}


def test_a_lazy_layer_is_not_sorted_before_it_has_a_shape() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.LazyLinear(8), nn.Linear(8, 2))
    with pytest.raises(ValueError, match=r"1.weight has no shape yet: call the model on a batch"):
        Muon.from_model(model)
    model(torch.ones(1, 4))
    assert names(partition(model).matrices) == {"0.weight", "1.weight"}


def test_a_pattern_that_matches_nothing_is_named() -> None:
    model = llama(tied=True)
    with pytest.raises(ValueError, match="blocks: 'qvk' matches none of the parameters' names"):
        Muon.from_model(model, blocks={"qvk": 3})
    with pytest.raises(ValueError, match="heads: 'lm_haed' matches none"):
        partition(model, heads=["lm_haed"])
    assert partition(model, heads=["lm_head"]).heads == []  # tied, so that it is the embedding


def test_the_weights_of_a_norm_are_vectors_whatever_their_shape() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm([2, 3, 6]), nn.RMSNorm([3, 6]), nn.Linear(6, 2))
    parts = partition(model)
    assert names(parts.vectors) == {"0.bias", "1.weight", "1.bias", "2.weight", "3.bias"}
    assert parts.stacks == parts.embeddings == []


def test_one_pattern_of_a_head_may_be_given_alone() -> None:
    model = nn.ModuleDict({"conv": nn.Linear(4, 4), "body": nn.Linear(4, 4), "fc": nn.Linear(4, 2)})
    assert names(partition(model, heads="fc").heads) == {"fc.weight"}
    with pytest.raises(ValueError, match="blocks maps patterns to numbers of blocks"):
        Muon.from_model(model, blocks=3)


class Holder(nn.Module):
    """A hidden layer, and what is given under a name."""

    def __init__(self, **held: nn.Module) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.more = nn.Linear(6, 6)
        for name, one in held.items():
            self.add_module(name, one)


def tensors(keys: list[str] | None, inside: bool = False) -> nn.Module:
    """Two matrices in a list, or in a dictionary with these keys, which may lie in another list."""
    two = [nn.Parameter(torch.ones(4, 6)) for _ in range(2)]
    held = nn.ParameterList(two) if keys is None else nn.ParameterDict(dict(zip(keys, two, strict=True)))
    return nn.ParameterList([held]) if inside else held


@each("keys", [None, ["default", "other"], ["0", "left"]])
@each("inside", [False, True])
@each(
    ("role", "container"),
    [
        *[("embeddings", name) for name in ("pos_embeds", "pos_embed", "cls_tokens", "queries", "bias_tables", "rel")],
        *[("embeddings", name) for name in ("trainable_tokens_delta", "lora_embedding_A", "positional_codes")],
        *[("vectors", name) for name in ("A_log", "A_logs", "D", "Ds", "layer_scale", "scales")],
        *[("matrices", name) for name in ("experts", "weights", "lora_embedding_B", "token_mixing", "projections")],
    ],
)
def test_a_tensor_in_a_container_goes_by_its_name(role: str, container: str, keys: list[str], inside: bool) -> None:
    parts = partition(Holder(**{container: tensors(keys, inside)}), heads=[])
    inner = f"{container}.0" if inside else container
    found = {name for name in names(getattr(parts, role)) if name.startswith(container)}
    assert found == {f"{inner}.{key}" for key in keys or ["0", "1"]}


def test_a_tensors_own_key_counts_beside_its_containers_name() -> None:
    held = tensors(["pos_embed", "mix"])
    parts = partition(Holder(extras=held), heads=[])
    assert "extras.pos_embed" in names(parts.embeddings)
    assert "extras.mix" in names(parts.matrices)


def several(kind: type, deep: bool) -> nn.Module:
    def head(outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, outputs)) if deep else nn.Linear(6, outputs)

    heads = [head(outputs) for outputs in (2, 3, 4)]
    return nn.ModuleList(heads) if kind is nn.ModuleList else nn.ModuleDict(dict(zip("abc", heads, strict=True)))


@each("kind", [nn.ModuleList, nn.ModuleDict])
@each("deep", [False, True])
@each(
    "name",
    [
        *("head", "heads", "lm_head", "lm_heads", "classifier", "classifiers", "score", "outputs"),
        *("task_heads", "out_heads", "out_head", "multi_task_heads", "attribute_heads", "aux_classifiers"),
    ],
)
@each("wrapped", [False, True])
def test_every_head_of_several_is_a_head(kind: type, deep: bool, name: str, wrapped: bool) -> None:
    model: nn.Module = Holder(**{name: several(kind, deep)})
    if wrapped and not deep:
        model = nn.ModuleDict({"net": model})
    parts = partition(model)
    assert sorted(p.shape[0] for _, p in parts.heads) == [2, 3, 4]
    assert len(parts.matrices) == (5 if deep else 2)


@each("kind", [nn.ModuleList, nn.ModuleDict])
@each("deep", [False, True])
@each("name", ["heads", "task_heads", "out_heads"])
@each("first", [False, True])
@each("wrapped", [False, True])
@each(
    ("beside", "heads"),
    [("classifier", 4), ("lm_head", 4), ("score", 4), ("fc", 3), ("fc2", 3), ("classifiers", 6), ("aux_heads", 6)],
)
def test_every_head_is_a_head_beside_others(
    kind: type, deep: bool, name: str, first: bool, wrapped: bool, beside: str, heads: int
) -> None:
    """A layer called "fc" may be what the heads read."""
    other = several(kind, deep) if heads == 6 else nn.Linear(6, 5)
    both = {name: several(kind, deep), beside: other}
    model: nn.Module = Holder(**dict(sorted(both.items(), key=lambda one: (one[0] == name) != first)))
    if wrapped and not deep:
        model = nn.ModuleDict({"net": model})
    found = names(partition(model).heads)
    assert len(found) == heads
    assert sum(f".{name}." in f".{one}" for one in found) == 3
    assert len(partition(model).matrices) == 2 + (heads == 3) + (deep * (6 if heads == 6 else 3))


@each("kind", [nn.ModuleList, nn.ModuleDict])
@each("name", ["heads", "classifiers", "task_heads"])
def test_heads_of_several_tasks_may_be_convolutions(kind: type, name: str) -> None:
    heads = [nn.Conv2d(6, 2, 1), nn.Sequential(nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Conv2d(6, 3, 1)), nn.Linear(6, 4)]
    model = Holder(**{name: kind(heads if kind is nn.ModuleList else dict(zip("abc", heads, strict=True)))})
    assert sorted(p.shape[0] for _, p in partition(model).heads) == [2, 3, 4]


@each("kind", [nn.ModuleList, nn.ModuleDict])
@each("name", ["heads", "task_heads", "out_heads", "attn_heads", "self_heads", "q_heads"])
@each("single", [False, True])
def test_heads_in_every_block_or_of_attention_are_hidden_layers(kind: type, name: str, single: bool) -> None:
    blocks = nn.ModuleList(Holder(**{name: several(kind, deep=False)}) for _ in range(2))
    of_attention = name[0] in "asq"
    model = nn.ModuleDict({"blocks": blocks})
    if of_attention:  # also where there is one block alone
        model[name] = several(kind, deep=False)
    if single:
        model["classifier"] = nn.Linear(6, 2)
    assert names(partition(model).heads) == ({"classifier.weight"} if single else set())


@each("ask", ["get_classifier", "get_output_embeddings"])
@each("kind", [nn.ModuleList, nn.ModuleDict])
def test_every_head_that_a_model_names_is_a_head(ask: str, kind: type) -> None:
    model = Holder(several=several(kind, deep=True))
    setattr(model, ask, lambda: model.several)
    assert sorted(p.shape[0] for _, p in partition(model).heads) == [2, 3, 4]


def test_hidden_layers_in_a_list_are_not_heads() -> None:
    chain = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)])
    for name in ("fcs", "layers"):
        assert not partition(Holder(**{name: chain})).heads
    assert names(partition(Holder(fc=chain)).heads) == {"fc.2.weight"}


class ParallelEmbedding(nn.Module):
    """As a tensor-parallel library's: no `nn.Embedding`, and its weight has the name of any layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(50, 8))


def test_an_embedding_of_another_library_is_one_by_the_name_of_its_class() -> None:
    parts = partition(nn.ModuleDict({"tok": ParallelEmbedding(), "body": nn.Linear(8, 8)}))
    assert names(parts.embeddings) == {"tok.weight"}
    assert names(parts.matrices) == {"body.weight"}


@pytest.mark.parametrize(
    ("before", "heads"), [(nn.LSTM(8, 8), {"1.weight"}), (nn.Embedding(9, 8), set()), (nn.LayerNorm(8), set())]
)
def test_the_last_layer_of_a_sequence_is_the_output_if_it_follows_one(before: nn.Module, heads: set[str]) -> None:
    assert names(partition(nn.Sequential(before, nn.Linear(8, 4))).heads) == heads
