"""Supervised fine-tuning with TRL's SFTTrainer: a base model made here, then questions and answers, loss on answers.

``sft.py FOLDER EPOCHS``; it goes on from the folder's last checkpoint.
"""

import sys
from pathlib import Path
from typing import Any

from client import Record, make_sentences
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

from autowarm.integrations.transformers import AdaptiveWarmupMixin


class RecordUpdates(TrainerCallback):
    def __init__(self, folder: str) -> None:
        self.record, self.last = Record(folder), {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
        if "learning_rate" in logs:
            self.last = {"number": state.global_step, "lr": logs["learning_rate"], "loss": logs["loss"]}

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._write()  # all that follows the update before is done

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._write()

    def _write(self) -> None:
        if self.last:
            self.record.update(**self.last)
            self.last = {}


def train_tokenizer(files: list[str], size: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = "<|end|>"
    tokenizer.train(files, trainers.BpeTrainer(vocab_size=size, special_tokens=[end], show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end, pad_token=end)


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
