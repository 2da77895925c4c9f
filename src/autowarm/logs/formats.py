"""Turns a log into columns: JSON, JSON lines, tables, what programs print, and TensorBoard's event files."""

import csv
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .columns import Table, logs_of, number, table_of
from .log import Log, LogError
from .words import printed, table_of_words

_MISSING = ("", "-", "na", "n/a", "#n/a", "none", "null")  # in lower case; not a loss that is not finite
# How JSON begins, and neither a line with a time in brackets nor a dictionary that Python prints.
_JSON = re.compile(r"\s*(\{\s*[\"}]|\[\s*[\[{\]])")


def logs_in(text: str, name: str, **options: Any) -> list[Log]:
    """Return the runs in the text of a file, recognised by its content; see `logs_of`."""
    if not text.strip():
        raise LogError(f"{name}: the file is empty")
    if not _JSON.match(text) and (text.lstrip()[0] not in "{[" or printed(text)):
        table, notes = table_of_words(text) if printed(text) else (_table(text, name), [])
        return logs_of(table, name, notes=notes, **options)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        # An object a line. A last line that is cut off is left out, and said to be.
        lines = [(count, line) for count, line in enumerate(text.splitlines(), start=1) if line.strip()]
        objects, notes = [], []
        for count, line in lines:
            try:
                objects.append(json.loads(line))
            except (ValueError, RecursionError):
                if count != lines[-1][0] or not objects:
                    raise LogError(f"{name}: line {count} is no JSON: {line.strip()[:60]!r}") from None
                notes.append(f"line {count} is cut off and left out")
        return logs_of(table_of(_objects(objects, name)), name, notes=notes, **options)
    if isinstance(whole, dict) and isinstance(whole.get("log_history"), list):
        # Of transformers' Trainer, where a loss is the mean of the updates since the one logged before.
        history = [*_objects(whole["log_history"], name), {"max_steps": whole.get("max_steps")}]
        return logs_of(table_of(history), name, averaged=True, **options)
    return logs_of(table_of(_objects(whole if isinstance(whole, list) else [whole], name)), name, **options)


def _objects(values: Any, name: str) -> list[Mapping[str, Any]]:
    if not values or not all(isinstance(row, dict) for row in values):
        raise LogError(
            f"{name}: this JSON holds no rows: a log is a list of objects, an object a line, or transformers' "
            "trainer_state.json"
        )
    return list(values)


def _table(text: str, name: str) -> Table:
    """A table with a header: comma, semicolon, tab or space between cells. An empty cell was not logged."""
    lines = [line for line in text.splitlines() if line.strip()]
    delimiter = next((mark for mark in ("\t", ";", ",") if mark in lines[0]), None)
    parts = [line.split() for line in lines] if delimiter is None else csv.reader(lines, delimiter=delimiter)
    header, *rows = [[cell.strip() for cell in row] for row in parts]
    rows = [row for row in rows if row != header]  # which may come again after a resume
    if number(header[0]) is not None or not rows or (delimiter is None and len(header) != len(rows[0])):
        raise LogError(
            f"{name}: there is no loss with a number beside it, and this is no table with a header and rows; its first "
            f"line is {lines[0][:60]!r}. Write two columns under a first line such as step,loss"
        )
    return table_of(
        {key: cell for key, cell in zip(header, row, strict=False) if cell.lower() not in _MISSING} for row in rows
    )


def table_of_events(path: Path, name: str) -> Table:
    """Return the scalars of an event file, or of a folder of them, as rows with a step and one value."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise LogError(f"{name}: reading TensorBoard's events needs its package: pip install tensorboard") from None
    # 0 keeps every event; a step that comes again after a resume is ours to put in order.
    events = EventAccumulator(str(path), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    events.Reload()
    rows = [
        {"step": event.step, tag: event.value if math.isfinite(event.value) else None}
        for tag in events.Tags()["scalars"]
        for event in events.Scalars(tag)
    ]
    if not rows:  # TensorFlow's writer keeps scalars as tensors
        raise LogError(f"{name}: the event files hold no scalars. Export the run as CSV, with columns step and loss")
    return table_of(rows)
