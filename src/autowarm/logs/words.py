"""Reads what a program printed: words and numbers, such as ``step: 10/500 | train loss 3.21 | lr=1e-4``."""

import re
from collections import Counter
from itertools import pairwise
from typing import Any

from .columns import LIKE_A_LOSS, LIKE_A_RATE, OTHER_LOSS, TOTAL, Table, number, plain, table_of

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TIME = re.compile(r"(\d{2,4}[-/.]\d\d([-/.]\d\d)?[ T,]+)?\d+:\d\d(:\d\d)?([.,]\d+)?(?![\w:])|\d{4}[-/]\d\d[-/]\d\d")
# A place in source, such as trainer.py:57, (trainer.py:log_step:57) or core.trainer:after_iter:57; and {step:.2f}, a
# format code of source that a log contains.
_SOURCE = re.compile(
    r"(?<![\w./\\])[\w./\\]+(?:\.py|:[A-Za-z_]\w*):\d+\b(?![.\w])|\{(?![\s\"'])[^{}:]*:(?:[<>=^+,\d]*(?:\.\d+)?[A-Za-z%]|\.\d+)\}"
)
_PHASE = re.compile(r"\b(val|valid|validation|eval|evaluation|test|dev)\b", re.I)
_RANK = re.compile(r"\b(?:rank|default)[\s:_=]{0,2}(\d+)\]", re.I)
# A number, which no percent sign follows.
_NUMBER = r"[-+]?(?>(?:\d+(?:[.,]\d+)*|\.\d+)\.?(?:[eE][-+]?\d+)?)(?!\s?%)|nan\b|[-+]?inf(?:inity)?\b"
_WORD = r"[A-Za-z_][\w/@.\-]*"
_PAIR = re.compile(
    rf"(?<![\w/@.\-])(?P<key>{_WORD}(?: \(?{_WORD}\)?){{0,3}})[\"')\]]*(?:\s*[:=]+[\s\"'\[(]*|[\s\[]+)"
    rf"(?P<value>{_NUMBER})(?:\s*/\s*(?P<of>\d[\d,]*))?",
    re.I,
)
_LOSS = re.compile(r"(?:loss|trl|xent)[\w/.@ \t\"'\]-]{0,24}[:= \t][ \t\"'\[]*(?:[-+]?\.?\d|nan)", re.I)
_KERAS = re.compile(r"^\s*\d+/\d+ .*\bs(tep)? - (.* - )?loss: |^\s*\d+/\d+ \[[=>.]+\].* - loss: ")
_COUNT = re.compile(r"(?<![\w./,])(\d+)\s*/\s*(\d+)(?![\w./])")
# Where a number stands before its word, or the word says something else.
_SPELLED = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\((train|training)\)", " "),  # mmengine
        (r"\bTrain: (\d+) \[", r"epoch \1 ["),  # timm
        (r"(?i)^\s*\[?(\d+)\]?\s*[:|]?\s+(?=(train\w*[ _])?loss\b)", r"step \1, "),
        (r"\bTrain Epoch: (\d+) \[(\d+)/\d+", r"epoch \1, samples \2, "),  # PyTorch's example counts samples
    )
]
_WORTH = re.compile(f"{LIKE_A_RATE.pattern}|{TOTAL.pattern}")
_STEPS = ("step", "iter", "iteration", "update", "batch")
_PLACES = {*_STEPS, "global_step", "num_updates", "steps", "s", "samples", "count"}


def printed(text: str) -> bool:
    """Whether a loss stands beside a number somewhere."""
    return _LOSS.search(text) is not None


def table_of_words(text: str) -> tuple[Table, list[str]]:
    """The numbers of each line by the words before them, and what to know of them.

    A line that names no step has that of the line before; a count without a word, as 10/500, is the column "count".
    """
    rows: list[dict[str, Any]] = []
    kinds: list[tuple[Any, Any] | None] = []
    place: dict[str, Any] = {}
    rank, other_ranks, keras, notes = None, 0, False, []
    for line in re.split(r"[\r\n\x08]+", _COLOURS.sub("", text)):
        if not any(map(str.isdigit, line)):
            continue
        row = _pairs(line)
        losses = frozenset(key for key in row if LIKE_A_LOSS.search(plain(key)) and not key.startswith("val "))
        keras = keras or (bool(losses) and _KERAS.search(line) is not None)
        if losses and (of_rank := _RANK.search(line)):
            rank = rank or of_rank[1]
            if of_rank[1] != rank:
                other_ranks += 1
                continue
        named = {key: row[key] for key in row if key in _PLACES or key in ("epoch", "of")}
        if named.keys() - {"epoch", "of"}:
            place = {"epoch": place["epoch"]} if "epoch" in place else {}
        place |= named
        row = place | row
        if losses or any(key == "epochs" or _WORTH.search(plain(key)) for key in row):
            rows.append(row)
            training = frozenset(key for key in losses if not OTHER_LOSS.search(plain(key)))
            kinds.append((training, frozenset(place) & _PLACES) if training else None)
        elif named.keys() & _PLACES - {"count"}:
            rows.append(named)
            kinds.append(None)
    if keras:
        notes.append("Keras prints the mean loss of the epoch so far, which falls later than the losses themselves")
    if other_ranks:
        notes.append(f"{other_ranks:,} lines of other ranks are left out")
    usual: dict[Any, tuple[int, Any]] = {}
    for (losses, places), count in Counter(kind for kind in kinds if kind).items():
        usual[losses] = max(usual.get(losses, (0, None)), (count, places), key=lambda x: x[0])
    of_the_usual = [kind is None or usual[kind[0]][1] == kind[1] for kind in kinds]
    if left_out := of_the_usual.count(False):
        notes.append(f"{left_out:,} lines with a loss, but a step of another kind, are left out")
    _count_through_epochs([row for row, kind in zip(rows, kinds, strict=True) if kind and usual[kind[0]][1] == kind[1]])
    return table_of(row for row, usual in zip(rows, of_the_usual, strict=True) if usual), notes


def _count_through_epochs(rows: list[dict[str, Any]]) -> None:
    """Turn a step of an epoch whose length is printed, as in [10/200], into one of the run, and add T."""
    counted = [
        (row, key, number(row[key]) or 0.0, (number(row.get("epoch", 0)) or 0.0) // 1)
        for row in rows
        if "of" in row and len(places := row.keys() & _PLACES) == 1
        for key in places
    ]
    again = any(t <= s and later > epoch for (*_, s, epoch), (*_, t, later) in pairwise(counted))
    epochs = {epoch for *_, epoch in counted}
    for row, key, step, epoch in counted:
        stated, first = int(row.get("epochs", 1)), min(1.0, *epochs, 1.0)
        times = max(stated, max(epochs) - first + 1) if again else stated if len(epochs) == 1 else 1
        row[key] = step + again * row["of"] * (epoch - first)
        row.setdefault("total_steps", row["of"] * times)


def _pairs(line: str) -> dict[str, Any]:
    """The words and numbers of a line; of several numbers by one name, the first."""
    for pattern, new in _SPELLED:
        line = pattern.sub(new, line)
    line = _SOURCE.sub(" ", _TIME.sub(" ", line))
    other, counts = _PHASE.search(line), line
    numbers: dict[str, Any] = {}
    for pair in _PAIR.finditer(line):
        key, value, of = pair["key"], pair["value"], pair["of"]
        name = plain(key)
        last, words = name.rpartition("_")[2], {*name.split("_")}
        total = None
        if last in ("epoch", "epochs") and "per" not in words:
            key, total = "epoch", "epochs"
            if of:  # which is no count of updates
                counts = counts.replace(pair[0], " ", 1)
        elif name in _PLACES or (last in _STEPS and "/" not in key and not words & {"per", "time", "avg"}):
            key, total = name if name in _PLACES else last, "of"
        elif LIKE_A_LOSS.search(name) and other and other.start() <= pair.start("key"):
            key = f"val {key}"
        if of and total:
            numbers.setdefault(total, int(of.replace(",", "")))
        if key in _PLACES or key == "epoch" or TOTAL.search(name):
            value = value.replace(",", "")
        if number(value) is not None:
            numbers.setdefault(key, value)
    if "of" not in numbers and (count := _COUNT.search(counts)):
        numbers |= {"count": int(count[1]), "of": int(count[2])}
    return numbers
