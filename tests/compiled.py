"""Compiles a small LLaMA, with its backward pass: what the first network of a process waits for is done then.

Without code generation. Nothing compiled is kept. Where there is a GPU nothing
is done: the backward pass would start threads, which no fork has.
"""

import torch

from autowarm.lab.config import ModelConfig
from autowarm.lab.tasks.models import llama, token_loss

if not torch.cuda.is_available():
    torch.ones((), requires_grad=True).backward()  # starts no threads, as it would once compiling has feigned a GPU
    net = llama(ModelConfig(layers=1, width=8, heads=2, ff=8, vocab_size=8, seq_len=8), seed=0)
    net.compile(backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        token_loss(net, torch.zeros(2, 9, dtype=torch.long)).backward()
    torch._dynamo.reset()
