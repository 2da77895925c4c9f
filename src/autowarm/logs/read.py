"""Finds the runs in a file or a folder."""

import os
import re
from pathlib import Path
from typing import Any

from .columns import logs_of
from .formats import logs_in, table_of_events
from .log import Log, LogError

# What a run's folder may hold, in the order of preference.
_FILES = ("trainer_state.json", "metrics.csv", "metrics.jsonl")


def read(
    path: str | os.PathLike[str],
    *,
    loss: str | None = None,
    step: str | None = None,
    lr: str | None = None,
    total_steps: int | None = None,
    first_loss: float | None = None,
) -> list[Log]:
    """Return the runs in a log, whose format is recognised by its content.

    It reads transformers' ``trainer_state.json``, Lightning's ``metrics.csv``, TensorBoard's event files, exports of
    Weights & Biases (CSV of a chart or a history, JSON lines), the lab's ``metrics.jsonl``, any CSV or JSON lines with
    columns of steps and losses, and what a program printed with a step and a loss beside numbers. A folder may hold a
    run's log, or several runs' event files.

    Args:
        path: the file or the folder.
        loss, step, lr: names of columns; None finds them by the usual names.
        total_steps: T; None takes it from the file, or else its last step.
        first_loss: the loss at update 1, for a log that begins later.

    Raises:
        LogError: there is no run to read; the message says what was found, what is needed, and what to do.
        OSError: the file cannot be opened.

    Example:
        >>> import pathlib, tempfile
        >>> from autowarm.logs import read
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "losses.txt")
        ...     _ = path.write_text("step loss\\n1 4.0\\n2 3.0\\n3 2.5\\n")
        ...     [log] = read(path)
        >>> log.losses
        array([4. , 3. , 2.5])
    """
    options: dict[str, Any] = {"loss": loss, "step": step, "lr": lr}
    options |= {"total_steps": total_steps, "first_loss": first_loss}
    path = Path(path).expanduser()
    name = _name(path)
    if path.is_dir():
        return _folder(path, options)
    if "tfevents" in path.name:
        return logs_of(table_of_events(path, name), name, shared=False, **options)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise LogError(
            f"{name}: no text in UTF-8, and no event file of TensorBoard by its name: unpack it, or save it as UTF-8"
        ) from None
    return logs_in(text, name, **options)


def _folder(folder: Path, options: dict[str, Any]) -> list[Log]:
    # transformers keeps the whole history in each checkpoint.
    checkpoints = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=_number)
    for file in [*(folder / name for name in _FILES), *checkpoints[-1:]]:
        if file.is_file():
            return read(file, **options)
    runs = sorted({file.parent for file in folder.rglob("*tfevents*")})
    logs, failed = [], []
    for run in runs:
        try:
            logs += logs_of(table_of_events(run, _name(run)), _name(run), shared=False, **options)
        except LogError as error:
            failed.append(error)
    if not logs:
        none = f"{folder}: none of {', '.join(_FILES)} or TensorBoard's event files is in this folder: name a file"
        raise failed[0] if failed else LogError(none)
    return logs


def _number(state: Path) -> int:
    """The number in a checkpoint's name."""
    written = re.search(r"-(\d+)$", state.parent.name)
    return int(written[1]) if written else -1


def _name(path: Path) -> str:
    """The file with its folder, which tells runs apart whose files have one name."""
    return str(Path(*path.parts[-2:])) if len(path.parts) > 1 else str(path)
