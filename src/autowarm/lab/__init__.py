"""The laboratory: everything behind the `autowarm` command, in rooms that build on each other from top to bottom.

- `config`: what is to be run.      - `files`: durable writes and locks.      - `processes`: new ones, and signals.
- `data`: text and images, as functions of (seed, step).
- `tasks`: networks and losses, your own task included.
- `training`: one run.      - `analysis`: statistics, figures, reports.
- `execution`: many runs, each once, on this machine or many.
- `paper`: the paper's figures and tables.
- `commands`: a file each.      - `registry`: every name.      - `errors`: what the user can fix.

`compare` does from Python what ``autowarm compare --task`` does. Importing this package imports none of the rooms.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .commands.compare import compare as compare

__all__ = ["compare"]


def __getattr__(name: str) -> object:
    if name != "compare":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .commands.compare import compare

    return compare


def __dir__() -> list[str]:
    return __all__
