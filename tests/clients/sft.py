"""Supervised fine-tuning with TRL's SFTTrainer: a base model made here, then questions and answers, loss on answers.

``sft.py FOLDER EPOCHS``; it goes on from the folder's last checkpoint.
"""

import sys
from pathlib import Path
from typing import Any

from client import make_sentences
from clm import RecordUpdates, train_tokenizer
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

from autowarm.integrations.transformers import AdaptiveWarmupMixin


class WarmupSFTTrainer(AdaptiveWarmupMixin, SFTTrainer):
    pass


def make_rows(count: int) -> list[dict[str, str]]:
    """Sentences cut in two: the beginning is the prompt, the rest the completion."""
    rows = []
    for sentence in make_sentences(count):
        words = sentence.split()
        rows.append({"prompt": " ".join(words[:3]), "completion": " " + " ".join(words[3:])})
    return rows


def main(folder: Path, epochs: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text("\n".join(make_sentences(200)))
    set_seed(0)
    tokenizer = train_tokenizer([str(folder / "text.txt")], 160)
    sizes: dict[str, Any] = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), num_attention_heads=4, max_position_embeddings=64, **sizes)
    args = SFTConfig(
        str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=10,
        max_length=64,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    )
    trainer = WarmupSFTTrainer(
        model=LlamaForCausalLM(config),
        args=args,
        optim="muon",
        train_dataset=Dataset.from_list(make_rows(160)),
        processing_class=tokenizer,
        callbacks=[recorder := RecordUpdates(str(folder))],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
    recorder.record.finish(trainer.model, trainer.lr_scheduler)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
