"""`autowarm report`: a results folder's table, figures and page again, as `compare` and `sweep` show them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import CompareConfig, SweepConfig
from ..config.build import Parser
from ..config.plans import listed
from ..errors import LabError

if TYPE_CHECKING:
    from ..analysis.results import Results


def run(argv: list[str]) -> int:
    """Make the table, the figures and the page of a results folder again."""
    parser = Parser("autowarm report", description="Make the table, the figures and the HTML report again.")
    parser.add_argument("folder", nargs="?", default="runs/compare", type=Path, help="of a comparison or a sweep")
    folder = parser.parse_args(argv).folder

    from ..analysis.results import read_results

    present(read_results(folder))()
    return 0


def present(results: "Results") -> Callable[[], None]:
    """Make the figures and the page; return a function that prints the table and the paths."""
    from rich.console import Console

    from ..analysis import report, table

    files = report.make(results)

    def show() -> None:
        console = Console(highlight=False)
        table.show(results.summaries, results.failed, console)
        for path in (results.folder / "results.json", *files):
            console.print(str(path), markup=False, soft_wrap=True)

    return show


def make_and_show(config: CompareConfig | SweepConfig, own: Any = None) -> int:
    """Make a plan's runs and show what came out."""
    points = listed(config)  # a mistake is told before anything slow is imported

    from ..execution.display import Display
    from ..execution.engine import make
    from ..training.stopping import Stop

    display = Display()
    with Stop(), display:
        results = make(config, points, display, own)
        display.note("drawing figures")
        show = present(results)
    show()
    complain(results.failed)
    return 0


def complain(failed: Mapping[str, str]) -> None:
    """Raise LabError if runs failed, listing each distinct message once with its runs."""
    said: dict[str, list[str]] = {}
    for label, message in failed.items():
        said.setdefault(message, []).append(label)
    if said:
        listed = "\n".join(f"  {', '.join(labels)}: {message}" for message, labels in said.items())
        raise LabError(f"failed runs: {len(failed)} (error.txt in a run's folder says where)\n{listed}")
