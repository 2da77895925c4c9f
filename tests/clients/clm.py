"""A causal language model with transformers' Trainer, as its run_clm example does it.

A tokenizer trained on the text, datasets read from text files, tokenized, joined and cut into blocks; evaluation with
perplexity; resumed from the last checkpoint of the output folder. What differs from a script with a hand-set schedule
is the trainer's class and its ``optim``.
"""

import math
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from client import Record
from datasets import Dataset, DatasetDict, load_dataset
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


@dataclass
class ModelArguments:
    hidden_size: int = field(default=48, metadata={"help": "Width of the model."})
    layers: int = field(default=2, metadata={"help": "Number of its blocks."})


@dataclass
class DataArguments:
    train_file: str = field(metadata={"help": "Text, one document a line."})
    validation_file: str = field(metadata={"help": "Text, one document a line."})
    block_size: int = field(default=32, metadata={"help": "Tokens in a training example."})
    vocabulary: int = field(default=160, metadata={"help": "Size of the tokenizer's vocabulary."})


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
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, args = parser.parse_args_into_dataclasses()
    checkpoint = get_last_checkpoint(args.output_dir) if Path(args.output_dir).is_dir() else None
    set_seed(args.seed)
    files = {"train": data_args.train_file, "validation": data_args.validation_file}
    tokenizer = train_tokenizer([data_args.train_file], data_args.vocabulary)
    blocks = make_blocks(load_dataset("text", data_files=files), tokenizer, data_args.block_size)
    training: Dataset = blocks["train"]
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=model_args.hidden_size,
        intermediate_size=2 * model_args.hidden_size,
        num_hidden_layers=model_args.layers,
        num_attention_heads=4,
        max_position_embeddings=data_args.block_size,
    )
    trainer = WarmupTrainer(
        AutoModelForCausalLM.from_config(config),
        args,
        optim="muon",
        train_dataset=training,
        eval_dataset=blocks["validation"],
        processing_class=tokenizer,
        data_collator=default_data_collator,
        callbacks=[RecordUpdates(args.output_dir)],
    )
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.log_metrics("train", result.metrics)
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()
    metrics = trainer.evaluate()
    metrics["perplexity"] = math.exp(metrics["eval_loss"])
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    Record(args.output_dir).finish(trainer.model, trainer.lr_scheduler)


if __name__ == "__main__":
    main()
