"""Where each tensor of real models goes."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from autowarm import Lion, Muon
from autowarm.optim import partition


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


@pytest.mark.parametrize("tied", [True, False])
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


def test_frozen_tensors_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    assert names(partition(model).matrices) == {"1.weight"}
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        partition(model)


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
