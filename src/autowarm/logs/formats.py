"""Turns a log into columns: JSON, JSON lines, tables, what programs print, and TensorBoard's event files."""

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .columns import Column, Table, logs_of, number, table_of
from .log import Log, LogError
from .words import printed, table_of_words

_MISSING = ("", "-", "na", "n/a", "#n/a", "none", "null")  # in lower case; not a loss that is not finite
_NAMES = ("step", "loss", "lr")  # of a table without a header
_SCALARS = ["Wall time", "Step", "Value"]  # one metric, as TensorBoard gives it for download
# How JSON begins, and neither a line with a time in brackets nor a dictionary that Python prints.
_JSON = re.compile(r"\s*(\{\s*[\"}]|\[\s*[\[{\]])")


def logs_in(text: str, name: str, **options: Any) -> list[Log]:
    """Return the runs in the text of a file, recognised by its content; see `logs_of`."""
    if not text.strip():
        raise LogError(f"{name}: the file is empty")
    if not _JSON.match(text) and (text.lstrip()[0] not in "{[" or printed(text)):
        table, notes = table_of_words(text) if printed(text) else _table(text, name)
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
        return _logs_of_objects(objects, name, notes=notes, **options)
    if isinstance(whole, dict) and isinstance(whole.get("log_history"), list):
        # Of transformers' Trainer, where a loss is the mean of the updates since the one logged before.
        history = [*_objects(whole["log_history"], name), {"max_steps": whole.get("max_steps")}]
        return logs_of(table_of(history), name, averaged=True, **options)
    return _logs_of_objects(whole if isinstance(whole, list) else [whole], name, **options)


def _logs_of_objects(objects: Sequence[Any], name: str, **options: Any) -> list[Log]:
    if objects and all(isinstance(row, list) and len(row) == len(_SCALARS) for row in objects):
        objects = [dict(zip(_SCALARS, row, strict=True)) for row in objects]
    rows = _objects(objects, name)
    if len(rows) == 1 and any(isinstance(value, list) for value in rows[0].values()):
        # One object with a list for each column.
        lists = {key: value for key, value in rows[0].items() if isinstance(value, list)}
        return logs_of({key: Column(np.arange(len(x)), x) for key, x in lists.items()}, name, **options)
    return logs_of(table_of(rows), name, **options)


def _objects(values: Any, name: str) -> list[Mapping[str, Any]]:
    if not values or not all(isinstance(row, dict) for row in values):
        raise LogError(
            f"{name}: this JSON holds no rows: a log is a list of objects, an object a line, or transformers' "
            "trainer_state.json"
        )
    return list(values)


def _table(text: str, name: str) -> tuple[Table, list[str]]:
    """A table: comma, semicolon, tab or space between cells, a header or not. An empty cell was not logged."""
    lines = [line for line in text.splitlines() if line.strip()]
    delimiter = next((mark for mark in ";,\t|" if lines[0] == f"sep={mark}" and len(lines) > 1), None)
    lines = lines[1:] if delimiter else lines  # Excel's first line
    if lines[0].startswith("#"):
        lines[0] = lines[0].lstrip("# ")  # as numpy.savetxt writes a header
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise LogError(f"{name}: the file holds comments alone")
    delimiter = delimiter or next((mark for mark in ("\t", ";", ",") if mark in lines[0]), None)

    def cells(of: Sequence[str]) -> list[list[str]]:
        rows = [line.split() for line in of] if delimiter is None else csv.reader(of, delimiter=delimiter)
        return [[cell.strip() for cell in row] for row in rows]

    [header], begin, notes = cells(lines[:1]), 1, []
    if number(header[0]) is not None:
        if len(header) > len(_NAMES):
            raise LogError(f"{name}: {len(header)} columns without a header: write a first line such as step,loss,lr")
        names = ["loss"] if len(header) == 1 else list(_NAMES[: len(header)])
        if len(header) == len(_NAMES):
            notes.append(f"the table has no header: its columns are taken as {', '.join(_NAMES)}")
        header, begin = names, 0
    if len(lines) == begin:
        raise LogError(f"{name}: a header ({', '.join(header)}) and no rows")
    rows = [row for row in cells(lines[begin:]) if row != header]  # which may come again after a resume
    if delimiter is None and len(header) + 1 == len(rows[0]):
        header = ["", *header]  # as pandas prints its index
    if delimiter is None and len(header) != len(rows[0]):
        raise LogError(
            f"{name}: there is no loss with a number beside it, and this is no table; its first line is "
            f"{lines[0][:60]!r}. Write two columns, such as step,loss"
        )
    return table_of(
        {key: cell for key, cell in zip(header, row, strict=False) if cell.lower() not in _MISSING} for row in rows
    ), notes


def table_of_events(path: Path, name: str) -> Table:
    """Return the scalars of an event file, or of a folder of them, as rows with a step and one value."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise LogError(f"{name}: reading TensorBoard's events needs its package: pip install tensorboard") from None
    # 0 keeps every event; a step that comes again after a resume is ours to put in order.
    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0}, purge_orphaned_data=False)
    events.Reload()
    tags = events.Tags()
    rows = [
        {"step": event.step, tag: event.value if math.isfinite(event.value) else None}
        for tag in tags["scalars"]
        for event in events.Scalars(tag)
    ]
    # TensorFlow's writer keeps a scalar as a tensor.
    rows += [
        {"step": event.step, tag: event.tensor_proto.float_val[0]}
        for tag in tags["tensors"]
        for event in events.Tensors(tag)
        if len(event.tensor_proto.float_val) == 1
    ]
    if not rows:
        raise LogError(f"{name}: the event files hold no scalars (tags: {', '.join(tags['tensors']) or 'none'})")
    return table_of(rows)
