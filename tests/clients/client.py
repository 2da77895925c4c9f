"""What the scripts in this folder share: text that is made up, a record of each update, and a sudden end."""

import hashlib
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

from torch import nn

__all__ = ["Record", "make_sentences"]

_SUBJECTS = ["the old captain", "a small robot", "my neighbour", "the river", "every second student", "a tired cook"]
_VERBS = {"sees": "a light", "paints": "the wall", "follows": "the road", "forgets": "the answer", "builds": "a boat"}
_TIMES = ["in the morning", "after the rain", "without a word", "once more", "before the winter comes"]


def make_sentences(count: int, seed: int = 0) -> list[str]:
    """Sentences with enough structure that a small model learns them, the same on every machine."""
    chosen = random.Random(seed)
    sentences = []
    for _ in range(count):
        verb = chosen.choice(list(_VERBS))
        words = [chosen.choice(_SUBJECTS), verb, _VERBS[verb], chosen.choice(_TIMES)]
        sentences.append(" ".join(words).capitalize() + ".")
    return sentences


class Record:
    """One line of ``FOLDER/log.jsonl`` per update, and ``FOLDER/result.json`` at the end.

    With ``DIE_AT`` in the environment, the process kills itself after that update: nothing is flushed, closed or saved.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._die_at = int(os.environ.get("DIE_AT", 0))

    def update(self, number: int, lr: float, loss: float) -> None:
        """Update ``number``, from 1, was made at rate ``lr``, and what follows an update, such as saving, is done."""
        with open(self._folder / "log.jsonl", "a") as file:
            file.write(json.dumps({"update": number, "lr": lr, "loss": loss}) + "\n")
        if number == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def finish(self, model: nn.Module, scheduler: Any) -> None:
        """The run is through."""
        weights = hashlib.sha256()
        for tensor in model.state_dict().values():
            weights.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        result = {
            "weights": weights.hexdigest(),
            "total_steps": scheduler.total_steps,
            "updates": scheduler.last_epoch,
            "phase": scheduler.phase,
            "rates": [float(group["lr"]) for group in scheduler.optimizer.param_groups],
        }
        (self._folder / "result.json").write_text(json.dumps(result))
