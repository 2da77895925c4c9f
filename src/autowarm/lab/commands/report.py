"""`autowarm report`: a results folder's table, figures and page again, as `compare` and `sweep` show them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.build import Parser
from ..errors import LabError
from ..files import claim

if TYPE_CHECKING:
    from ..analysis.results import Results


def run(argv: list[str]) -> int:
    parser = Parser("autowarm report", description="Make the table, the figures and the HTML report again.")
    parser.add_argument("folder", nargs="?", default="runs/compare", type=Path, help="of a comparison or a sweep")
    folder = parser.parse_args(argv).folder

    from ..analysis import report
    from ..analysis.results import read_results, unfinished

    results = read_results(folder)
    claim(folder)
    show(results, report.make(results))
    if missing := unfinished(folder):  # of a later command there
        print(missing)
    return 0


def show(results: "Results", files: Sequence[Path]) -> "Results":
    """Print the table and the paths; return the results."""
    from rich.console import Console

    from ..analysis import table

    table.show(results.summaries, results.failed, Console(highlight=False))
    print(results.folder / "results.json", *files, sep="\n")
    return results


def complain(failed: Mapping[str, str]) -> int:
    """Return 0; raise LabError if runs failed, listing each distinct message once with its runs."""
    if not failed:
        return 0
    labels = {message: [label for label in failed if failed[label] == message] for message in failed.values()}
    lines = "\n".join(f"  {', '.join(labels[message])}: {message}" for message in labels)
    raise LabError(f"failed runs: {len(failed)} (error.txt in a run's folder says where)\n{lines}")
