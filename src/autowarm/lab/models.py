"""The networks of the experiments, from transformers, with random weights that depend on the seed alone."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import ModelConfig


def llama(config: ModelConfig, seed: int) -> nn.Module:
    """A `LlamaForCausalLM` in float32; the same seed gives the same weights, and the global generator is left alone."""
    from transformers import LlamaConfig, LlamaForCausalLM  # slow to import, so only where a model is made

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.width,
                intermediate_size=config.ff,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                max_position_embeddings=config.seq_len,
                initializer_range=config.init_scale / math.sqrt(config.width),
                tie_word_embeddings=True,
                use_cache=False,
                bos_token_id=None,
                eos_token_id=None,
            )
        )


def token_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean cross-entropy, in nats per token, of predicting each next token; computed in float32."""
    logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def save_weights(model: nn.Module, folder: Path) -> None:
    """Writes `model.safetensors` and the `config.json` from which `LlamaForCausalLM.from_pretrained` makes it again."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # one bar a run, for a file written in a millisecond
    model.save_pretrained(folder)  # type: ignore[operator]
