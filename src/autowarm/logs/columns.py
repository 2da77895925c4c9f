"""Finds step, loss and rate among the columns of a log, and the runs among its rows."""

import difflib
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from .log import Log, LogError, make_log

Record = Mapping[str, Any]

# Names of columns in lower case, with _ for whatever is no letter or digit; the first one found counts.
_STEPS = ("trainer_global_step", "train_global_step", "global_step", "step", "steps", "train_step", "iteration",
          "iter", "update", "updates", "num_updates")  # fmt: skip
_LOSSES = ("loss", "train_loss", "training_loss", "train_train_loss", "loss_train", "train_loss_step", "loss_step",
           "train_training_loss", "losses")  # fmt: skip
_RATES = ("lr", "learning_rate", "train_lr", "train_learning_rate")
_LIKE_A_LOSS = re.compile(r"(^|_)loss(_|$)")
_LIKE_A_RATE = re.compile(r"(^|_)(lr|learning_rate)(_|$)")
_OURS = re.compile(r"(^|_)autowarm(_|$)")  # the smoothed loss and the target that our plug-ins log
_OTHER_LOSS = re.compile(
    r"(^|_)(val|valid|validation|eval|test|dev|aux|min|max|best)(_|$)|loss_(scale|scaler|scaling|weight|coef|coeff|factor)s?(_|$)"
)
_OTHER_COUNT = re.compile("samples|tokens")
_EPOCHS = ("epoch", "epochs", "train_epoch", "trainer_epoch")
_SPLITS = ("split", "phase", "mode", "stage")
_NOT_TRAINING = ("val", "valid", "validation", "eval", "evaluation", "test", "dev")
_RUNS = ("run", "run_id", "run_name")
# A chart that Weights & Biases exports has a column "NAME - METRIC" for every run, and its extremes.
_WIDE = re.compile(r"^(?P<run>.+) - (?P<column>.+?)(?P<extreme>__MIN|__MAX)?$")


def logs_of(
    records: Sequence[Record],
    name: str,
    *,
    loss: str | None = None,
    step: str | None = None,
    lr: str | None = None,
    **facts: Any,
) -> list[Log]:
    """Return the runs in the rows of a log, where a value that a row lacks was not logged, and None is not finite.

    Columns that are not named are found by the usual names. ``facts`` are further arguments of `make_log`. A LogError
    says that no run has the columns, and lists those that there are.
    """
    columns = list(dict.fromkeys(key for record in records for key in record))
    runs = _split(records, columns, loss)
    logs, failed = [], []
    for run, rows in runs.items():
        try:
            logs.append(_log(rows, f"{name}: {run}" if len(runs) > 1 else name, loss, step, lr, facts))
        except LogError as error:
            failed.append(error)
    if not logs:
        raise failed[0] if failed else LogError(f"{name}: no rows")
    return logs


def _split(records: Sequence[Record], columns: Sequence[str], loss: str | None) -> dict[str, Sequence[Record]]:
    """The rows of each run, by its name."""
    wide = [found for column in columns if (found := _WIDE.match(column))]
    if wide and loss not in columns and _first(columns, _LOSSES) is None:
        shared = [column for column in columns if not _WIDE.match(column)]
        apart: dict[str, Sequence[Record]] = {}
        for run in dict.fromkeys(found["run"] for found in wide):
            own = [(m.string, m["column"]) for m in wide if m["run"] == run and not m["extreme"]]
            renamed = [*((column, column) for column in shared), *own]
            apart[run] = [{new: record[old] for old, new in renamed if old in record} for record in records]
        return apart
    key = next((column for column in columns if _plain(column) in _RUNS), None)
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(str(record.get(key, "")) if key else "", []).append(record)
    return dict(groups)


def _log(rows: Sequence[Record], name: str, loss: str | None, step: str | None, lr: str | None, facts: Any) -> Log:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    notes = list(facts.get("notes", ()))
    of_loss = _given(loss, columns, name) or _loss(rows, columns, name, notes)
    rows = _of_training(rows, columns, of_loss, notes)
    of_step = _given(step, columns, name) or _step(rows, of_loss, columns)
    of_rate = _given(lr, columns, name) or _rate(columns, notes)
    if of_step is not None and _OTHER_COUNT.search(of_step.lower()):
        raise LogError(
            f"{name}: the column {of_step!r} counts samples or tokens rather than updates: choose the column that "
            f"counts updates with step= (--step) ({_listed(columns)})"
        )
    if of_step == "_step" != step:
        notes.append(
            "the column _step counts calls of wandb.log, which may not be updates; step= (--step) names another"
        )
    if of_step is None:
        if _first(columns, _EPOCHS) is not None:
            raise LogError(
                f"{name}: no column counts updates ({_listed(columns)}), and a loss per epoch says too little: name "
                "the column with step= (--step)"
            )
        notes.append("no column counts updates, so each loss counts as one update")
        rows = [{**row, "step": number} for number, row in enumerate((row for row in rows if of_loss in row), start=1)]
        of_step = "step"
    elif (epoch := _first(columns, _EPOCHS)) is not None:
        rows = _joined(rows, of_step, epoch, {of_loss, of_rate}, notes)
    losses, odd = _series(rows, of_step, of_loss, "losses", notes)
    if odd > len(losses[0]):
        raise LogError(f"{name}: {notes[-1]}: write them as 1234.5, or choose another column ({_listed(columns)})")
    if not losses[0]:
        raise LogError(f"{name}: the column {of_loss!r} has no number beside a {of_step!r} ({_listed(columns)})")
    if "averaged" not in facts and _of_transformers(rows, columns, of_loss):
        gaps = [after - before for before, after in pairwise(losses[0])]
        if gaps and statistics.median(gaps) > 1:
            notes.append("the columns are those of transformers' Trainer, whose losses are means")
            facts = {**facts, "averaged": True}
    rates, odd = _series(rows, of_step, of_rate, "rates", notes) if of_rate is not None else (([], []), 0)
    if odd > len(rates[0]):
        rates = [], []
    return make_log(name, *losses, *(rates if rates[0] else (None, None)), **{**facts, "notes": notes})


def _of_training(rows: Sequence[Record], columns: Sequence[str], loss: str, notes: list[str]) -> Sequence[Record]:
    """The rows without those of validation, where a column such as "split" tells them from others with a loss."""
    for split in (column for column in columns if _plain(column) in _SPLITS):
        kept = [row for row in rows if str(row.get(split)).lower() not in _NOT_TRAINING]
        if len(kept) < len(rows) and any(loss in row for row in kept):
            notes.append(f"{len(rows) - len(kept):,} rows of validation, by the column {split!r}, are left out")
            rows = kept
    return rows


def _joined(rows: Sequence[Record], step: str, epoch: str, read: set[str | None], notes: list[str]) -> Sequence[Record]:
    """The rows with steps that go on where the step begins again with a later epoch; a resume goes back in both."""
    known: list[tuple[int, float, float]] = []
    for i, row in enumerate(rows):
        at, when = number(row.get(step, "")), number(row.get(epoch, ""))
        if read & set(row) and at is not None and when is not None and math.isfinite(at + when):
            known.append((i, at, when))
    gaps = sorted(b - a for (_, a, _), (_, b, _) in pairwise(known) if b > a) or [1.0]
    every, joined, starts = gaps[len(gaps) // 2], list(rows), [(-math.inf, 0.0)]
    most, before, last = 1, 0.0, math.inf
    for i, at, when in known:
        if at < before and when > last:
            starts.append((when, starts[-1][1] + before + every - at))
        while when < starts[-1][0]:
            starts.pop()
        joined[i] = {**rows[i], step: at + starts[-1][1]}
        most, before, last = max(most, len(starts)), at, when
    if most == 1:
        return rows
    notes.append(f"the step begins again in each of {most} epochs, so each goes on where the one before ended")
    return joined


def _of_transformers(rows: Sequence[Record], columns: Sequence[str], loss: str) -> bool:
    """Whether transformers' Trainer wrote it, for Weights & Biases or TensorBoard, or as rows with parts of epochs."""
    if loss == "train/loss":
        return "train/learning_rate" in columns and ("train/global_step" in columns or "train/epoch" in columns)
    own = {"loss", "learning_rate", "epoch", "step"}
    epochs = [number(row["epoch"]) for row in rows if own <= row.keys()] if loss == "loss" else []
    return any(epoch is not None and math.isfinite(epoch) and epoch % 1 for epoch in epochs)


def _series(
    rows: Iterable[Record], step: str, column: str, what: str, notes: list[str]
) -> tuple[tuple[list[float], list[float]], int]:
    """The steps and values of a column, and how many are no numbers, which is noted."""
    at, values, odd = [], [], []
    for row in rows:
        if column in row and step in row:
            value, when = number(row[column]), number(row[step])
            if value is None or when is None:
                odd.append(row[column] if value is None else row[step])
            elif not math.isnan(when):
                at.append(when)
                values.append(value)
    if odd:
        total, first = len(odd) + len(at), str(odd[0])[:30]
        notes.append(f"{len(odd)} of {total} {what} or their steps are no numbers and left out (the first: {first!r})")
    return (at, values), len(odd)


def number(value: Any) -> float | None:
    """The value as a number: NaN for null, and None for what is no number, such as a histogram or a word."""
    if value is None:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _plain(column: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")


def _listed(columns: Sequence[str]) -> str:
    return f"columns: {', '.join(columns[:20])}{', …' if len(columns) > 20 else ''}"


def _first(columns: Sequence[str], names: Sequence[str]) -> str | None:
    plain = {_plain(column): column for column in reversed(columns)}
    return next((plain[name] for name in names if name in plain), None)


def _given(wanted: str | None, columns: Sequence[str], name: str) -> str | None:
    if wanted is None or wanted in columns:
        return wanted
    alike = [column for column in columns if _plain(column) == _plain(wanted)]
    if len(alike) == 1:
        return alike[0]
    near = difflib.get_close_matches(wanted, columns, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise LogError(f"{name}: there is no column {wanted!r}: {hint}{_listed(columns)}")


def _step(rows: Sequence[Record], loss: str, columns: Sequence[str]) -> str | None:
    """The column of steps; _step of Weights & Biases counts calls of its log, so it gives way to any beside a loss."""
    counted = dict.fromkeys(key for row in rows if loss in row for key in row if key != "_step")
    return _first([*counted], _STEPS) or _first(columns, _STEPS)


def _loss(rows: Sequence[Record], columns: Sequence[str], name: str, notes: list[str]) -> str:
    """The column with the most losses of those with a usual name; one with a single loss, a run's mean, is no other."""
    usual = {
        column: sum(row.get(column) is not None for row in rows)
        for wanted in _LOSSES
        for column in columns
        if _plain(column) == wanted
    }
    if usual:
        most = max(usual, key=usual.__getitem__)
        if others := [column for column, count in usual.items() if count > 1 and column != most]:
            notes.append(f"{most} is read as the loss, and not {', '.join(others)}; loss= (--loss) names another")
        return most
    like = [column for column in columns if _LIKE_A_LOSS.search(_plain(column))]
    like = [column for column in like if not _OTHER_LOSS.search(_plain(column))]
    of_the_run = [column for column in like if not _OURS.search(_plain(column))]
    if of_the_run or len(like) > 1:
        like = of_the_run
    if len(like) == 1:
        return like[0]
    what = "no column looks like a training loss." if not like else f"which is the loss, {' or '.join(like)}?"
    raise LogError(f"{name}: {what} Name it with loss= (--loss). {_listed(columns)}")


def _rate(columns: Sequence[str], notes: list[str]) -> str | None:
    if (usual := _first(columns, _RATES)) is not None:
        return usual
    like = [column for column in columns if _LIKE_A_RATE.search(_plain(column))]
    if len(like) > 1:
        notes.append(f"of the rates {', '.join(like)} the first is read; lr= (--lr) names another")
    return like[0] if like else None
