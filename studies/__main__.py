"""``python -m studies NAME …``: the benchmark, one of the other studies, or the pages.

bench      makes the runs of the benchmark of warm-ups, or lists them
geometry   prints the tables of the judgement by geometry
peak_limit makes those of the judgement of a limit of the peak rate
recovery   makes those of faults and of changing objectives, with recovery and without
published  prices the default on the curves of the paper's authors; no run
pages      writes the tables and figures of the documentation from all stored rows
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from autowarm.lab.config import LabError, UsageError

NAMES = ("bench", "geometry", "peak_limit", "recovery", "published", "pages")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser("python -m studies", description=__doc__, formatter_class=form)
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("words", nargs=argparse.REMAINDER, help="its options, if it has some; NAME --help lists them")
    given = parser.parse_args(argv)
    if given.name in ("pages", "published") and given.words:
        parser.error(f"{given.name} takes no options, got {given.words[0]}")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        if given.name == "pages":
            print(*import_module("studies.pages.write").write_pages(Path()), sep="\n")
        else:
            import_module(f"studies.{given.name}").main(given.words)
    except LabError as error:
        print(f"studies: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
