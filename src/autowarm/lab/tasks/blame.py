"""Reports a mistake in a user's code in one line, which names the last place there."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import BrokenTask, LabError
from .fingerprint import is_installed

_LONGEST = 500  # maximal length of a quoted exception message, in characters


@contextmanager
def blamed(file: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn an exception that passed through the user's code into a LabError of one line that names the place.

    The user's code is that in the task's file and in its folder and below. An exception that passed through none of it
    is ours or the system's, and goes on unchanged, as those in `passing` do.
    """
    try:
        yield
    except (LabError, *passing):  # type: ignore[misc]
        raise
    except (Exception, SystemExit) as error:
        frames = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.filename:
            frames.append((error.filename, error.lineno, ""))
        places = [_place(*frame) for frame in frames if _is_users(frame[0], file)]
        if not places:
            raise
        raise BrokenTask(f"{places[-1]}: {type(error).__name__}: {said(error)}") from error


def _is_users(filename: str, file: str) -> bool:
    path, folder = Path(filename), Path(file).parent
    return filename == file or (path.is_absolute() and folder in path.parents and not is_installed(path))


def _place(filename: str, line: int | None, function: str) -> str:
    """Describe a place in the user's code. A notebook's cell has no file name that a reader knows."""
    path = Path(filename)
    if path.parent.name.startswith("ipykernel_") or filename.startswith("<"):
        return f"{function}, line {line} of its cell" if function else f"line {line} of a cell"
    return f"{path.name}:{line}"


def said(thing: object) -> str:
    """Return a value, or an exception's message, as one line of limited length."""
    text = " ".join(str(thing).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def kind(value: Any) -> str:
    """Describe a value of the wrong kind."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
