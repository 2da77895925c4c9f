"""A LLaMA as small as can be, and texts of different lengths for it."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

__all__ = ["make_data", "make_model"]


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, max_position_embeddings=16, **sizes))


def make_data(count: int) -> list[dict[str, torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    data = []
    for i in range(count):
        ids = torch.randint(32, (12,), generator=g)
        labels = ids.clone()
        labels[: i % 9] = -100  # micro-batches of different numbers of tokens
        data.append({"input_ids": ids, "labels": labels})
    return data
