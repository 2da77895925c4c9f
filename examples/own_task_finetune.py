"""Compare warm-ups for fine-tuning: a small GPT-2 of transformers, pretrained on prose and moved to source code.

`prepare` pretrains once and saves; every run starts from what it saved. In a task of your own it would download.

    python examples/own_task_finetune.py        # or with a number of updates
    autowarm compare --task examples/own_task_finetune.py:FineTune --warmups '[0, 0.1, 0.5]'
"""

import argparse
import pydoc_data.topics
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

LENGTH, BATCH = 64, 8
PROSE = "".join(pydoc_data.topics.topics.values()).encode()
CODE = Path(argparse.__file__).read_bytes()


def examples(text: bytes, draw: torch.Generator) -> dict[str, torch.Tensor]:
    """A batch as transformers' models take it: bytes are tokens, and labels are shifted by the model."""
    starts = torch.randint(len(text) - LENGTH, (BATCH,), generator=draw)
    rows = np.stack([np.frombuffer(text, np.uint8, LENGTH, int(start)) for start in starts])
    ids = torch.from_numpy(rows).long()
    return {"input_ids": ids, "labels": ids}


class FineTune:
    defaults = {
        "rates": {"adamw": [1e-3], "lion": [3e-4]},
        "run.steps": 80,
        "run.clip": 1.0,
        "warmups": [0, 0.1, 0.4, 0.8],
    }

    def prepare(self, folder):
        model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        draw = torch.Generator().manual_seed(0)
        for _ in range(200):
            model(**examples(PROSE, draw)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.save_pretrained(folder)

    def model(self):
        return GPT2LMHeadModel.from_pretrained(self.folder)

    def batches(self, seed):
        draw = torch.Generator().manual_seed(seed)
        while True:
            yield examples(CODE[: -len(CODE) // 10], draw)

    def loss(self, model, batch):
        return model(**batch).loss

    def validation(self):
        draw = torch.Generator().manual_seed(0)
        return [examples(CODE[-len(CODE) // 10 :], draw) for _ in range(10)]


if __name__ == "__main__":
    from autowarm.lab import compare

    steps = int(sys.argv[1]) if sys.argv[1:] else FineTune.defaults["run.steps"]
    print(compare(FineTune(), steps=steps, out="runs/finetune"))
