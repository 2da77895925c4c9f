"""Finds step, loss and rate among the columns of a log, and the runs among its rows."""

import contextlib
import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .log import Log, LogError, make_log

Record = Mapping[str, Any]


class Column(NamedTuple):
    """The cells of a column that were logged: the rows that they are in, rising, and their values."""

    rows: NDArray[np.int64]
    values: Sequence[Any] | NDArray[np.float64]

    def within(self, rows: NDArray[np.int64]) -> "Column":
        """Only the cells in these rows."""
        wanted = np.flatnonzero(np.isin(self.rows, rows))
        return Column(self.rows[wanted], [self.values[int(i)] for i in wanted])

    def numbers(self) -> NDArray[np.float64]:
        """The values as numbers: NaN for null, and for what is none, such as a word."""
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            array = np.asarray(self.values, dtype=np.float64)
            if array.ndim == 1:
                return array
        return np.array([math.nan if (x := number(value)) is None else x for value in self.values])


Table = dict[str, Column]

# Names of columns in lower case, with _ for whatever is no letter or digit; the first one found counts.
_STEPS = ("trainer_global_step", "train_global_step", "global_step", "current_steps", "num_updates", "step", "steps",
          "train_step", "iteration", "iterations", "iter", "n_iter", "it", "update", "updates", "gradient_step", "s",
          "batch", "count")  # fmt: skip
_LOSSES = ("loss", "train_loss", "training_loss", "train_train_loss", "loss_train", "train_loss_step", "loss_step",
           "train_training_loss", "losses", "total_loss", "trl", "xent")  # fmt: skip
_RATES = ("lr", "learning_rate", "train_lr", "train_learning_rate")
LIKE_A_LOSS = re.compile(r"(^|_)loss(_|$)|^(trl|xent)$")
LIKE_A_RATE = re.compile(r"(^|_)(lr|learning_rate)\d*(_|$)")
OTHER_LOSS = re.compile(  # autowarm: the smoothed loss and the target that our plug-ins log
    r"(^|_)(val|valid|validation|eval|test|dev|aux|min|max|best|autowarm)(_|$)|"
    r"loss_(scale|scaler|scaling|weight|coef|coeff|factor)s?(_|$)"
)
_OTHER_COUNT = re.compile("samples|tokens")
TOTAL = re.compile(r"(^|_)(total|max|num_train|num_training)_(\w+_)?(steps|iters|iterations|updates)$|^iters$")
_EPOCHS = ("epoch", "epochs", "train_epoch", "trainer_epoch")
_SPLITS = ("split", "phase", "mode", "stage")
_NOT_TRAINING = ("val", "valid", "validation", "eval", "evaluation", "test", "dev")
_RUNS = ("run", "run_id", "run_name")
# A chart that Weights & Biases exports has a column "NAME - METRIC" for every run, and its extremes.
_WIDE = re.compile(r"^(?P<run>.+) - (?P<column>.+?)(?P<extreme>__MIN|__MAX)?$")


def table_of(records: Iterable[Record]) -> Table:
    """The columns of rows, where a value that a row lacks was not logged; one within another is named "outer/inner"."""
    cells: dict[str, tuple[list[int], list[Any]]] = {}

    def put(key: str, start: int, values: Sequence[Any]) -> None:
        if dict in set(map(type, values)):
            for row, value in enumerate(values, start):
                for name, inner in value.items() if type(value) is dict else [("", value)]:
                    put(f"{key}/{name}" if name else key, row, [inner])
            return
        rows, cell_values = cells.setdefault(key, ([], []))
        rows.extend(range(start, start + len(values)))
        cell_values.extend(values)

    row = 0
    for keys, group in groupby(records, tuple):  # rows in a row with the same columns, all at once
        alike = list(group)
        for key in keys:
            put(key, row, [record[key] for record in alike])
        row += len(alike)
    return {key: Column(np.array(rows), _at_once(values)) for key, (rows, values) in cells.items()}


def _at_once(values: list[Any]) -> Sequence[Any] | NDArray[np.float64]:
    """The values as an array if they are numbers, or null, which is NaN then."""
    if {*map(type, values)} <= {int, float, type(None)}:
        with contextlib.suppress(OverflowError):
            return np.array(values, dtype=np.float64)
    return values


def logs_of(
    table: Table,
    name: str,
    *,
    loss: str | None = None,
    step: str | None = None,
    lr: str | None = None,
    **facts: Any,
) -> list[Log]:
    """Return the runs in the columns of a log, where None is a value that is not finite.

    Columns that are not named are found by the usual names. ``facts`` are further arguments of `make_log`. A LogError
    says that no run has the columns, and lists those that there are.
    """
    runs = _split(table, loss)
    logs, failed = [], []
    for run, columns in runs.items():
        try:
            logs.append(_log(columns, f"{name}: {run}" if len(runs) > 1 else name, loss, step, lr, facts))
        except LogError as error:
            failed.append(error)
    if not logs:
        raise failed[0] if failed else LogError(f"{name}: no rows with steps and losses")
    return logs


def _split(table: Table, loss: str | None) -> dict[str, Table]:
    """The columns of each run, by its name."""
    wide = [match for column in table if (match := _WIDE.match(column))]
    if wide and loss not in table and _first(table, _LOSSES) is None:
        tables: dict[str, Table] = {}
        for run in dict.fromkeys(match["run"] for match in wide):
            columns = {m["column"]: table[m.string] for m in wide if m["run"] == run and not m["extreme"]}
            shared = {key: column for key, column in table.items() if not _WIDE.match(key)}
            rows = np.unique(np.concatenate([[], *(column.rows for column in columns.values())]))
            tables[run] = _within(shared, rows) | columns
        return tables
    key = next((column for column in table if plain(column) in _RUNS), None)
    if key is None:
        return {"": table} if table else {}
    groups: dict[str, list[int]] = {}
    for row, run in zip(table[key].rows.tolist(), table[key].values, strict=True):
        groups.setdefault(str(run), []).append(row)
    return {run: _within(table, np.array(rows)) for run, rows in groups.items()}


def _shared(one: Column, other: Column) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The rows that both columns have, and their places in both."""
    if np.array_equal(one.rows, other.rows):
        return one.rows, (places := np.arange(len(one.rows))), places
    return np.intersect1d(one.rows, other.rows, assume_unique=True, return_indices=True)


def _within(table: Table, rows: NDArray[np.int64]) -> Table:
    return {key: cells for key, column in table.items() if len((cells := column.within(rows)).rows)}


def _log(table: Table, name: str, loss: str | None, step: str | None, lr: str | None, facts: Any) -> Log:
    facts = {"shared": True, **facts}
    notes, columns = list(facts.pop("notes", ())), list(table)
    of_loss = _given(loss, columns, name) or _loss(table, name, notes)
    _refuse_validation(table, of_loss, name)
    of_step = _given(step, columns, name) or _step(table, of_loss)
    of_rate = _given(lr, columns, name) or _rate(columns, notes)
    if of_step is None:
        raise LogError(f"{name}: no column counts updates: name it with step= (--step), or add one. {_listed(columns)}")
    if _OTHER_COUNT.search(of_step.lower()) or (step is None and _of_samples(table, of_step)):
        raise LogError(
            f"{name}: the column {of_step!r} counts samples or tokens rather than updates: choose the column that "
            f"counts updates with step= (--step) ({_listed(columns)})"
        )
    if of_step == "_step" != step:
        notes.append("_step counts calls of wandb.log, which may not be updates; step= (--step) names another")
    for column in (of_step, of_loss):
        odd = next((x for x in table[column].values if number(x) is None), None)
        if odd is not None:
            raise LogError(
                f"{name}: {str(odd)[:30]!r} in the column {column!r} is no number: write it as 1234.5, leave the row "
                f"out, or choose another column ({_listed(columns)})"
            )
    if (epoch := _first(columns, _EPOCHS)) is not None:
        # Where the epoch rises, the step must not fall.
        steps, epochs = table[of_step].within(table[of_loss].rows), table[epoch]
        _, i, j = _shared(steps, epochs)
        if ((np.diff(steps.numbers()[i]) < 0) & (np.diff(epochs.numbers()[j]) > 0)).any():
            raise LogError(f"{name}: the steps begin again in each epoch: pass steps that count the run's updates")
    losses, rows = _series(table, of_step, of_loss)
    if not len(losses[0]):
        raise LogError(f"{name}: the column {of_loss!r} has no number beside a {of_step!r} ({_listed(columns)})")
    rates = ((), ()) if of_rate is None else _series(table, of_step, of_rate)[0]
    if facts.pop("shared"):  # whatever was logged after the last loss shows how long the run went on
        later = table[of_step].numbers()[table[of_step].rows > rows[-1]]
        facts["end"] = max(later[np.isfinite(later)], default=None)
    stated: list[float] = next((table[key].numbers().tolist() for key in table if TOTAL.search(plain(key))), [])
    facts["planned"] = next((int(x) for x in reversed(stated) if x > 0 and x % 1 == 0), None)  # T, where the log has it
    facts["columns"] = [of_step, of_loss, *([of_rate] if of_rate and len(rates[0]) else ())]
    return make_log(name, *losses, *(rates if len(rates[0]) else (None, None)), **facts, notes=notes)


def _of_samples(table: Table, step: str) -> bool:
    """Whether a printed count without a word, such as [1616/5011], goes up by the size of a batch."""
    if step != "count" or "of" not in table:
        return False
    at = np.unique(table[step].numbers())
    at = at[at < max(table["of"].numbers())]  # the last batch may be smaller
    if len(at) < 3 or (first := int(at[0])) < 2 or (at % first).any():
        return False
    # Updates logged at multiples of the first would be as far apart as the first; at every 16th, hardly anyone logs.
    return bool(np.median(np.diff(at)) > first or (first >= 8 and first.bit_count() == 1))


def _refuse_validation(table: Table, loss: str, name: str) -> None:
    """Rows of validation beside rows of training: their losses would be read as one curve."""
    for split in [column for column in table if plain(column) in _SPLITS]:
        rows, values = table[split]
        other = [row for row, of in zip(rows.tolist(), values, strict=True) if str(of).lower() in _NOT_TRAINING]
        if other and 0 < np.isin(table[loss].rows, other).mean() < 1:
            raise LogError(
                f"{name}: the column {split!r} has rows of validation among those of training: leave them out, or give "
                "their loss a column of its own"
            )


def _series(table: Table, step: str, column: str) -> tuple[tuple[Any, Any], NDArray[np.int64]]:
    """The steps and values of a column, and the rows that have both."""
    rows, i, j = _shared(table[step], table[column])
    at, values = table[step].numbers()[i], table[column].numbers()[j]
    return (at[~np.isnan(at)], values[~np.isnan(at)]), rows


def number(value: Any) -> float | None:
    """The value as a number: NaN for null, and None for what is no number, such as a histogram or a word."""
    if value is None:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def plain(column: str) -> str:
    """The name in lower case, with _ for whatever is no letter or digit, and between words of a CamelCase name."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(column)).lower()
    return re.sub(r"[^a-z0-9]+", "_", words).strip("_")


def _listed(columns: Sequence[str]) -> str:
    return f"columns: {', '.join(columns[:20])}{', …' if len(columns) > 20 else ''}"


def _first(columns: Iterable[str], names: Sequence[str]) -> str | None:
    column_by_name = {plain(column): column for column in reversed([*columns])}
    return next((column_by_name[name] for name in names if name in column_by_name), None)


def _given(wanted: str | None, columns: Sequence[str], name: str) -> str | None:
    if wanted is None or wanted in columns:
        return wanted
    near = difflib.get_close_matches(wanted, columns, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise LogError(f"{name}: there is no column {wanted!r}: {hint}{_listed(columns)}")


def _step(table: Table, loss: str) -> str | None:
    """The column of steps; _step of Weights & Biases counts calls of its log, so it gives way to any beside a loss."""
    rows = table[loss].rows
    beside = [key for key, column in table.items() if key != "_step" and np.isin(column.rows, rows).any()]
    return _first(beside, _STEPS) or _first(list(table), _STEPS)


def _loss(table: Table, name: str, notes: list[str]) -> str:
    """The column with the most losses of those with a usual name, or the only one like a loss."""
    columns = list(table)
    if usual := [column for wanted in _LOSSES for column in columns if plain(column) == wanted]:
        counts = {column: int((~np.isnan(table[column].numbers())).sum()) for column in usual}
        most = max(usual, key=counts.__getitem__)
        # A single value is the mean of the whole run.
        if others := [column for column in usual if column != most and counts[column] > 1]:
            notes.append(f"{most} is read as the loss, and not {', '.join(others)}; loss= (--loss) names another")
        return most
    like = [c for c in columns if LIKE_A_LOSS.search(plain(c)) and not OTHER_LOSS.search(plain(c))]
    if len(like) == 1:
        return like[0]
    what = "no column looks like a training loss." if not like else f"which is the loss, {' or '.join(like)}?"
    raise LogError(
        f"{name}: {what} Name it with loss= (--loss), or write two columns, step and loss. {_listed(columns)}"
    )


def _rate(columns: Sequence[str], notes: list[str]) -> str | None:
    if (usual := _first(columns, _RATES)) is not None:
        return usual
    like = [column for column in columns if LIKE_A_RATE.search(plain(column))]
    if len(like) > 1:
        notes.append(f"of the rates {', '.join(like)} the first is read; lr= (--lr) names another")
    return like[0] if like else None
