"""Compare warm-ups on a model of your own: nanoGPT's, on a text that every Python has.

The first part is a model file as its author would have it. The second part, the class `NanoGPT`, makes it a task.

    python examples/own_task_nanogpt.py        # or with a number of updates
    autowarm compare --task examples/own_task_nanogpt.py:NanoGPT --seeds '[0, 1, 2]'
"""

import pydoc_data.topics
import sys

import torch
import torch.nn as nn
from torch.nn import functional as F

# --- the model and its data ------------------------------------------------------------------------------------------

block_size, batch_size, n_layer, n_head, n_embd, dropout = 48, 12, 2, 4, 64, 0.1
text = "".join(topic for topic in pydoc_data.topics.topics.values() if topic.isascii())
chars = sorted(set(text))
stoi = {ch: i for i, ch in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text], dtype=torch.uint8)
train_data, val_data = data[: int(0.9 * len(data))], data[int(0.9 * len(data)) :]


def get_batch(split):
    data = train_data if split == "train" else val_data
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[i : i + block_size].long() for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size].long() for i in ix])
    return x, y


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in self.c_attn(x).split(n_embd, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout if self.training else 0, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(n_embd), CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(dropout)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(chars), n_embd), nn.Embedding(block_size, n_embd)
        self.h, self.ln_f = nn.Sequential(*[Block() for _ in range(n_layer)]), nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, len(chars), bias=False)
        self.lm_head.weight = self.wte.weight
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        logits = self.lm_head(self.ln_f(self.h(x)))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


# --- the task --------------------------------------------------------------------------------------------------------


class NanoGPT:
    defaults = {"rates": {"muon": [0.01], "adamw": [0.003]}, "run.steps": 150, "warmups": [0, 0.1, 0.4, 0.8]}

    def model(self):
        return GPT()

    def batches(self, seed):
        while True:
            yield get_batch("train")

    def loss(self, model, batch):
        _, loss = model(*batch)
        return loss

    def validation(self):
        return [get_batch("val") for _ in range(10)]


if __name__ == "__main__":
    from autowarm.lab import compare

    steps = int(sys.argv[1]) if sys.argv[1:] else NanoGPT.defaults["run.steps"]
    print(compare(NanoGPT(), steps=steps, out="runs/nanogpt"))
