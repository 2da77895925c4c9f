"""Reports a mistake in a user's code in one line that names its place there."""

import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import BrokenTask, LabError

_LONGEST = 500  # maximal length of a quoted exception message, in characters


@contextmanager
def blamed(file: str, where: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn an exception in the user's code into a LabError of one line, which names the place in that code.

    A stack frame counts as the user's if its file is in the folder of the task's file or below it. Exceptions in
    `passing` are not mistakes and pass through unchanged, as does an OSError without such a frame.
    """
    try:
        yield
    except (LabError, *passing):  # type: ignore[misc]
        raise
    except (Exception, SystemExit) as error:
        place = f"{Path(file).name}: {where}"
        frames = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.filename:
            frames.append((error.filename, error.lineno, ""))
        if theirs := [frame for frame in frames if _is_beside(frame[0], file)]:
            place = f"{_place(*theirs[-1])}: {where}"
        elif isinstance(error, OSError):
            raise  # of our own files, such as a full disk
        raise BrokenTask(f"{place}: {type(error).__name__}: {said(error)}") from error


def _is_beside(filename: str, file: str) -> bool:
    if filename == file:
        return True
    path, folder = Path(filename), Path(file).parent
    return path.is_absolute() and folder in path.parents and "site-packages" not in path.parts


def _place(filename: str, line: int | None, function: str) -> str:
    """Describe a place in the user's code. A notebook's cell has no file name that a reader knows."""
    path = Path(filename)
    if path.parent.name.startswith("ipykernel_") or filename.startswith("<"):
        return f"{function}, line {line} of its cell" if function else f"line {line} of a cell"
    return f"{path.name}:{line}"


def place_of(thing: Any) -> str:
    """Return the place of a function's or class's code, followed by a colon; an empty string if it is not known."""
    if isinstance(thing, type):
        try:
            return f"{_place(inspect.getsourcefile(thing) or '', inspect.getsourcelines(thing)[1], '')}: "
        except (OSError, TypeError):
            return ""
    code = getattr(inspect.unwrap(thing), "__code__", None)
    return f"{_place(code.co_filename, code.co_firstlineno, code.co_name)}: " if code else ""


def said(thing: object) -> str:
    """Return a value, or an exception's message, as one line of limited length."""
    text = " ".join(str(thing).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def kind(value: Any) -> str:
    """Describe a value of the wrong kind."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
