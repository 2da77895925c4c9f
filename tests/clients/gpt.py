"""A small GPT in one file, in the manner of nanoGPT's train.py: no ``get_lr``, no ``warmup_iters``, no ``min_lr``.

``gpt.py --out_dir=FOLDER --max_iters=60 --init_from=resume``. Gradient accumulation, a GradScaler, clipping, and a
compiled model, by the backend that needs no C++ compiler; the graphs are those of the default. Like its model it makes
``max_iters + 1`` updates. It writes a line of ``log.jsonl`` per update, and ``result.json`` at the end. With ``DIE_AT``
in the environment, the process kills itself after that update: nothing is flushed, closed or saved.
"""

import hashlib
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autowarm import AdaptiveWarmup, Muon

# Defaults, overridden by --name=value.
out_dir = "out"
init_from = "scratch"  # or "resume"
max_iters = 60
eval_interval = 20
gradient_accumulation_steps = 4
batch_size = 4
block_size = 32
n_layer, n_head, n_embd = 2, 4, 32
learning_rate = 1e-2
weight_decay = 0.1
grad_clip = 1.0
for argument in sys.argv[1:]:
    name, _, value = argument.removeprefix("--").partition("=")
    if name not in globals():
        raise SystemExit(f"there is no setting {name!r}")
    globals()[name] = type(globals()[name])(value)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x: Tensor) -> Tensor:
        heads = (t.unflatten(-1, (n_head, -1)).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.c_proj(attended.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.Sequential(*(Block() for _ in range(n_layer)))
        self.ln_f, self.lm_head = nn.LayerNorm(n_embd), nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        for embedding in (self.wte, self.wpe):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        x = self.h(self.wte(idx) + self.wpe.weight[: idx.shape[1]])
        return F.cross_entropy(self.lm_head(self.ln_f(x)).flatten(0, 1), targets.flatten())


torch.manual_seed(1337)

# The data: characters, as in data/shakespeare_char/prepare.py.
folder = Path(out_dir)
folder.mkdir(parents=True, exist_ok=True)
words = ("the old captain", "a small robot", "sees a light", "builds a boat", "in the morning", "after the rain")
text = " ".join(random.Random(0).choices(words, k=1200))
characters = sorted(set(text))
np.array([characters.index(c) for c in text], dtype=np.uint16).tofile(folder / "train.bin")
data = np.memmap(folder / "train.bin", dtype=np.uint16, mode="r")


def get_batch(seed: int) -> tuple[Tensor, Tensor]:
    """By number, so that a resumed run reads what an uninterrupted one does."""
    starts = torch.randint(len(data) - block_size, (batch_size,), generator=torch.Generator().manual_seed(seed))
    rows = torch.stack([torch.from_numpy(data[i : i + block_size + 1].astype(np.int64)) for i in starts])
    return rows[:, :-1], rows[:, 1:]


model: Any = torch.compile(GPT(len(characters)), backend="aot_eager", fullgraph=True)
optimizer = Muon.from_model(model, lr=learning_rate, weight_decay=weight_decay)
scheduler = AdaptiveWarmup(optimizer, total_steps=max_iters)
scaler = torch.amp.GradScaler("cpu")
iter_num, parts = 0, {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
if init_from == "resume":
    checkpoint = torch.load(folder / "ckpt.pt", weights_only=True)
    for key, part in parts.items():
        part.load_state_dict(checkpoint[key])
    iter_num = checkpoint["iter_num"]


def save() -> None:
    saved = {name: part.state_dict() for name, part in parts.items()}
    torch.save(saved | {"iter_num": iter_num}, folder / "ckpt.tmp")
    os.replace(folder / "ckpt.tmp", folder / "ckpt.pt")


while True:
    if iter_num % eval_interval == 0:
        save()
    lr = scheduler.get_last_lr()[0]
    for micro_step in range(gradient_accumulation_steps):
        X, Y = get_batch(1000 * iter_num + 10 * micro_step)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(X, Y)
        scheduler.observe(loss)
        scaler.scale(loss / gradient_accumulation_steps).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    with open(folder / "log.jsonl", "a") as file:
        file.write(json.dumps({"update": iter_num, "lr": lr, "loss": loss.item()}) + "\n")
    if iter_num == int(os.environ.get("DIE_AT", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
    if iter_num > max_iters:
        break

weights = hashlib.sha256()
for tensor in model.state_dict().values():
    weights.update(tensor.detach().contiguous().numpy().tobytes())
result = {"weights": weights.hexdigest(), "total_steps": scheduler.total_steps, "updates": scheduler.last_epoch,
          "phase": scheduler.phase, "rates": [float(group["lr"]) for group in optimizer.param_groups]}  # fmt: skip
(folder / "result.json").write_text(json.dumps(result))
save()
