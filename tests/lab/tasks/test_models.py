import dataclasses
import math
from pathlib import Path

import pytest
import torch

from autowarm import Muon, NormSGD
from autowarm.lab.config import LLAMA_124M, LLAMA_210M, ModelConfig
from autowarm.lab.tasks.models import flops_per_token, llama, parameters, save_weights, token_loss
from autowarm.others import geometry_of, kappa_of

CONFIG = ModelConfig(layers=2, width=32, heads=2, ff=64, vocab_size=300, seq_len=16)


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = llama(CONFIG, seed=1).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    again, other = llama(CONFIG, seed=1).state_dict(), llama(CONFIG, seed=2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(("config", "count"), [(LLAMA_124M, 123_587_328), (LLAMA_210M, 208_540_416)])
def test_the_paper_s_models_have_the_paper_s_sizes(config: ModelConfig, count: int) -> None:
    with torch.device("meta"):
        model = llama(config, seed=0)
    assert sum(p.numel() for p in model.parameters()) == count == parameters(config)


def test_operations_a_token_are_what_torch_counts_but_for_the_causal_half() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = llama(CONFIG, seed=0)
    tokens = torch.randint(0, 300, (2, 17))
    with FlopCounterMode(display=False) as counter:
        token_loss(model, tokens).backward()
    assert math.isclose(flops_per_token(CONFIG) * 2 * 16, counter.get_total_flops(), rel_tol=0.1)


def test_residual_projections_are_scaled_by_the_root_of_twice_the_depth() -> None:
    plain = llama(CONFIG, seed=0).state_dict()
    scaled = llama(dataclasses.replace(CONFIG, scaled_residual=True), seed=0).state_dict()
    for name, value in plain.items():
        writes = name.endswith(("o_proj.weight", "down_proj.weight"))
        torch.testing.assert_close(scaled[name], value / math.sqrt(2 * CONFIG.layers) if writes else value)


def test_fused_q_k_and_v_compute_the_same_as_one_matrix_and_are_saved_apart(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    apart, fused = (llama(dataclasses.replace(CONFIG, fused_qkv=each), seed=0) for each in (False, True))
    tokens = torch.randint(0, 300, (4, 17), generator=torch.Generator().manual_seed(0))
    losses = [token_loss(model, tokens) for model in (apart, fused)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    one, whole = apart.model.layers[1].self_attn, fused.model.layers[1].self_attn.qkv
    grads = [getattr(one, name).weight.grad for name in ("q_proj", "k_proj", "v_proj")]
    torch.testing.assert_close(whole.weight.grad, torch.cat(grads))
    assert sum(p.numel() for p in fused.parameters()) == parameters(CONFIG)
    # normSGD gives each matrix a step of length lr; the fused one gets a single such step.
    before = whole.weight.detach().clone()
    NormSGD.from_model(fused, lr=0.5, weight_decay=0.0).step()
    assert (whole.weight - before).norm().item() == pytest.approx(0.5, rel=1e-5)
    save_weights(fused, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(token_loss(loaded, tokens), token_loss(fused, tokens))


@pytest.mark.parametrize(("fused", "kappa"), [(True, 46_848), (False, 65_280)])
def test_kappa_of_the_papers_model_with_q_k_and_v_fused_and_apart(fused: bool, kappa: int) -> None:
    with torch.device("meta"):
        model = llama(dataclasses.replace(LLAMA_124M, fused_qkv=fused), seed=0)
    optimizer = Muon.from_model(model)
    assert kappa_of(optimizer, geometry_of(optimizer)) == kappa
