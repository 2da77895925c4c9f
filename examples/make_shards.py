"""Token shards for `data.corpus`: of FineWeb's 10-billion-token sample, or of text files of your own.

    python examples/make_shards.py --tokens 2000000000
    python examples/make_shards.py --files 'texts/*.txt' --out data/mine

They have the format of kjj0/fineweb10B-gpt2 on the Hugging Face Hub, whose files can be used as they are. The first
documents make the validation part. `datasets` keeps nothing on disk, so an interrupted call begins anew.
"""

import argparse
from pathlib import Path

import datasets
import numpy as np
from transformers import AutoTokenizer

from autowarm.lab.data.shards import write_shard

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("data/fineweb"))
parser.add_argument("--files", help="text files, such as 'texts/*.txt', instead of FineWeb; each is a document")
parser.add_argument("--tokens", type=float, default=float("inf"), help="stop after this many")
parser.add_argument("--shard-tokens", type=int, default=100_000_000)
parser.add_argument("--val-tokens", type=int, default=10_000_000)
parser.add_argument("--tokenizer", default="gpt2", help="a name on the hub or a folder; 65,536 tokens at most")
given = parser.parse_args()
if any(given.out.glob("*.bin")):
    parser.error(f"{given.out} holds shards: give another --out, or delete them")

tokenizer = AutoTokenizer.from_pretrained(given.tokenizer)
if given.files:
    texts = datasets.load_dataset("text", data_files=given.files, sample_by="document", split="train", streaming=True)
else:
    texts = datasets.load_dataset("HuggingFaceFW/fineweb", name="sample-10BT", split="train", streaming=True)


def encoded(rows):
    """The documents' tokens, each document after the end-of-text token."""
    ids = tokenizer(rows["text"], add_special_tokens=False)["input_ids"]
    return {"tokens": [[tokenizer.eos_token_id, *document] for document in ids]}


def write(parts, number):
    path, tokens = given.out / f"{'train' if number else 'val'}_{number:06d}.bin", np.concatenate(parts)
    write_shard(path, tokens)
    print(f"{path}: {len(tokens):,} tokens")


held, count, number, size = [], 0, 0, 0
for row in texts.select_columns("text").map(encoded, batched=True, remove_columns="text"):
    held.append(np.array(row["tokens"], dtype=np.uint16))
    size += len(held[-1])
    count += len(held[-1])
    if size >= (given.shard_tokens if number else given.val_tokens):
        write(held, number)
        held, number, size = [], number + 1, 0
    if count >= given.tokens and number:
        break
if held:
    write(held, number)
    number += 1
if number < 2:
    parser.error(f"all {count:,} tokens went into the validation part: lower --val-tokens from {given.val_tokens:,}")
vocab_size = -(-len(tokenizer) // 128) * 128  # matrix products like multiples of 128
print(f"train on them: autowarm train --data.corpus {given.out} --model.vocab_size {vocab_size}")
