"""Fine-tuning tasks: a small LLaMA trained on one kind of text continues with another.

The model first learns Python's standard library without a few packages. The task "near" continues with those packages,
which are code by other authors; "far" continues with the language's documentation, which is prose. Each trains either
all weights or LoRA adapters only (peft). Validation scores held-out text of the new kind and, to measure forgetting, of
the old kind.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from autowarm.lab.config import DataConfig, ModelConfig
from autowarm.lab.data import batch as sample
from autowarm.lab.data import cache_folder, validation_batches
from autowarm.lab.data.text import learnt_tokenizer, read_documents
from autowarm.lab.errors import needs
from autowarm.lab.files import write_atomically
from autowarm.lab.tasks.models import llama, token_loss
from autowarm.lab.tasks.recipes import Recipe

logger = logging.getLogger(__name__)

SHAPE = ModelConfig(vocab_size=512, width=48, heads=3, ff=128, seq_len=32)
NEAR = ("asyncio", "email", "json", "logging", "unittest", "xml")
_SEQUENCES = 16
_STEPS, _RATE = 6000, 3e-3  # for training on the old text, with AdamW and 5 % warm-up
_RANK = 4  # of the LoRA adapters


def domain(name: str) -> str:
    """Return the text that a document belongs to: "old", "near" or "far".

    Example:
        >>> [domain(name) for name in ("email/parser.py", "documentation/with", "heapq.py")]
        ['near', 'far', 'old']
    """
    package = name.partition("/")[0]
    return "near" if package in NEAR else "far" if package == "documentation" else "old"


@cache
def _prepared(steps: int) -> tuple[dict[str, np.ndarray], dict[str, Tensor]]:
    """Return the tokens of each text, keyed "old train" and so on, and the weights learnt from the old text; cached."""
    documents = sorted(read_documents(DataConfig()))
    key = hashlib.sha256(f"1 {SHAPE} {steps} {_RATE} {torch.__version__}".encode())
    for name, text in documents:
        key.update(f"\0{name}\0".encode() + text.encode())
    path = cache_folder() / f"fine-tuning-{key.hexdigest()[:16]}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):  # concurrent runs wait for the first one
        try:
            found = load_file(path)
        except (FileNotFoundError, SafetensorError) as error:
            if path.exists():
                logger.warning("%s is damaged (%s) and is made again", path, error)
            parts = _tokens(documents)
            kept = {name: torch.from_numpy(tokens.view(np.int16)) for name, tokens in parts.items()}
            write_atomically(path, save({**kept, **_learnt(parts["old train"], steps)}))
            found = load_file(path)
    tokens = {name: found.pop(name).numpy().view(np.uint16) for name in list(found) if " " in name}
    return tokens, found


def _tokens(documents: Iterable[tuple[str, str]]) -> dict[str, np.ndarray]:
    """Tokenise each text, with every tenth document held out for validation."""
    parts: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for name, text in documents:
        which = domain(name)
        counts[which] += 1
        parts.setdefault(f"{which} {'train' if counts[which] % 10 else 'val'}", []).append(text)
    tokenizer = learnt_tokenizer(parts["old train"], SHAPE.vocab_size)
    return {
        part: np.array([token for one in tokenizer.encode_batch(texts) for token in one.ids], dtype=np.uint16)
        for part, texts in parts.items()
    }


def _learnt(tokens: np.ndarray, steps: int) -> dict[str, Tensor]:
    model = llama(SHAPE, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, steps, pct_start=0.05, cycle_momentum=False)
    for step in range(steps):
        token_loss(model, torch.from_numpy(sample(tokens, 0, step, _SEQUENCES, SHAPE.seq_len))).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return {name: weight.detach().contiguous() for name, weight in model.named_parameters()}


def fine_tuning(text: str, *, lora: bool = False, steps: int = _STEPS) -> Recipe:
    """Make the task of fine-tuning on the text "near" or "far".

    Args:
        lora: train only adapters of rank 4, one on every linear layer.
        steps: steps of training on the old text.
    """

    def build() -> nn.Module:
        model = llama(SHAPE, seed=0)
        model.load_state_dict(_prepared(steps)[1], strict=False)  # not strict: the head is tied to the embedding
        if not lora:
            return model
        with needs("a task with LoRA", "lora"):
            from peft import LoraConfig, get_peft_model

        return get_peft_model(model, LoraConfig(r=_RANK, lora_alpha=2 * _RANK, target_modules="all-linear"))

    def tokens(part: str) -> np.ndarray:
        return _prepared(steps)[0][part]

    def draw(seed: int, step: int) -> tuple[Tensor]:
        return (torch.from_numpy(sample(tokens(f"{text} train"), seed, step, _SEQUENCES, SHAPE.seq_len)),)

    def held_out() -> Iterator[tuple[Tensor, Tensor]]:
        new, old = (validation_batches(tokens(f"{which} val"), 8, 64, SHAPE.seq_len) for which in (text, "old"))
        return zip(map(torch.from_numpy, new), map(torch.from_numpy, old), strict=True)

    def scores(model: nn.Module, new: Tensor, old: Tensor) -> dict[str, Tensor]:
        return {"loss": token_loss(model, new), "old_loss": token_loss(model, old)}

    return Recipe(build, draw, token_loss, held_out, scores, first_bounds=False)


TASKS: dict[str, Recipe] = {
    f"tune-{text}{'-lora' * lora}": fine_tuning(text, lora=lora) for lora in (False, True) for text in ("near", "far")
}
