"""transformers' Trainer on a small, deep Llama: one class for another, and no warm-up to choose.

On two processes: torchrun --nproc_per_node 2 trainer.py
"""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from autowarm.integrations.transformers import WarmupTrainer

torch.manual_seed(0)
STEPS = 300
# Made-up text: counting, from a random start and by a random stride.
starts, strides = torch.randint(32, (4096, 1)), torch.randint(1, 4, (4096, 1))
data = [{"input_ids": row, "labels": row} for row in (starts + strides * torch.arange(16)) % 32]
config = LlamaConfig(
    vocab_size=32,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=6,
    num_attention_heads=2,
    max_position_embeddings=16,
)
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        folder,
        max_steps=STEPS,
        learning_rate=3e-2,  # of AdamW, which is Trainer's own choice
        per_device_train_batch_size=16,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = WarmupTrainer(LlamaForCausalLM(config), args, train_dataset=data)
    result = trainer.train()
if trainer.is_world_process_zero():
    print(f"warm-up took {trainer.lr_scheduler.warmup_steps} of {STEPS} steps; mean loss {result.training_loss:.3f}")
