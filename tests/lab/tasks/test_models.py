import math

import pytest
import torch

from autowarm.lab.config import LLAMA_124M, LLAMA_210M, ModelConfig
from autowarm.lab.tasks.models import attend_plainly, flops_per_token, llama, parameters, token_loss

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


def test_embeddings_are_tied_and_weights_have_the_configured_scale() -> None:
    model = llama(CONFIG, seed=0)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    std = model.model.layers[0].mlp.up_proj.weight.std().item()
    assert math.isclose(std, CONFIG.init_scale / math.sqrt(CONFIG.width), rel_tol=0.1)


def test_an_untrained_model_is_about_as_good_as_guessing() -> None:
    tokens = torch.randint(0, 300, (8, 17))
    assert abs(token_loss(llama(CONFIG, seed=0), tokens).item() - math.log(300)) < 0.5


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


@pytest.mark.parametrize("length", [32, 257])
def test_attention_by_plain_products_is_attention(length: int) -> None:
    model = llama(ModelConfig(layers=2, width=32, heads=2, ff=48, vocab_size=300, seq_len=512), seed=0)
    tokens = torch.randint(300, (2, length + 1), generator=torch.Generator().manual_seed(0))
    expected = token_loss(model, tokens)
    attend_plainly(model, length)
    assert model.config._attn_implementation == ("eager" if length == 32 else "sdpa")
    torch.testing.assert_close(token_loss(model, tokens), expected)
