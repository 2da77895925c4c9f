"""A causal language model with transformers' Trainer, as its run_clm example does it.

A tokenizer trained on the text, datasets read from text files, tokenized, joined and cut into blocks; evaluation;
resumed from the last checkpoint of the output folder. What differs from a script with a hand-set schedule is the
trainer's class and its ``optim``.
"""

from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from client import Record
from datasets import DatasetDict, load_dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    HfArgumentParser,
    LlamaConfig,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from autowarm.integrations.transformers import WarmupTrainer

LENGTH, VOCABULARY, WIDTH = 32, 160, 48


@dataclass
class DataArguments:
    train_file: str = field(metadata={"help": "Text, one document a line."})
    validation_file: str = field(metadata={"help": "Text, one document a line."})


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


def make_blocks(texts: DatasetDict, tokenizer: PreTrainedTokenizerFast, length: int) -> DatasetDict:
    def tokenize(rows: dict[str, list[str]]) -> Any:
        return tokenizer([text + tokenizer.eos_token for text in rows["text"]], return_token_type_ids=False)

    def group_texts(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {key: list(chain.from_iterable(value)) for key, value in rows.items()}
        whole = len(joined["input_ids"]) // length * length
        blocks = {key: [ids[i : i + length] for i in range(0, whole, length)] for key, ids in joined.items()}
        return blocks | {"labels": blocks["input_ids"]}

    return texts.map(tokenize, batched=True, remove_columns=["text"]).map(group_texts, batched=True)


def main() -> None:
    data_args, args = HfArgumentParser((DataArguments, TrainingArguments)).parse_args_into_dataclasses()
    checkpoint = get_last_checkpoint(args.output_dir) if Path(args.output_dir).is_dir() else None
    set_seed(args.seed)
    files = {"train": data_args.train_file, "validation": data_args.validation_file}
    tokenizer = train_tokenizer([data_args.train_file], VOCABULARY)
    blocks = make_blocks(load_dataset("text", data_files=files), tokenizer, LENGTH)
    sizes: dict[str, int] = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), num_attention_heads=4, max_position_embeddings=LENGTH, **sizes)
    trainer = WarmupTrainer(
        AutoModelForCausalLM.from_config(config),
        args,
        optim="muon",
        train_dataset=blocks["train"],
        eval_dataset=blocks["validation"],
        processing_class=tokenizer,
        data_collator=default_data_collator,
        callbacks=[RecordUpdates(args.output_dir)],
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    Record(args.output_dir).finish(trainer.model, trainer.lr_scheduler)


if __name__ == "__main__":
    main()
