"""The pages of the studies, computed from their rows.

- `evidence`: the numbers of docs/evidence.md, by their names in its template.      - `tables`: its tables.
- `figures`: its figures.      - `write`: puts them into the files of a checkout.
- `fair`, `grids`, `peak`: tables and figures of the other studies.
"""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from autowarm.lab.analysis.figures import encoded
from autowarm.lab.files import write_atomically


def write_files(root: Path, files: Mapping[str, str | Figure]) -> list[Path]:
    """Write tables, as CSV, into docs/data/tables, figures, as PNG, into docs/figures, and pages where they are named.

    Args:
        root: root of the repository.
        files: contents by name; that of a page is its path, which ends in .md.

    Returns:
        The paths of the files written.
    """
    paths = []
    for name, content in files.items():
        table = f"docs/data/tables/{name}.csv" if isinstance(content, str) else f"docs/figures/{name}.png"
        paths.append(root / (name if name.endswith(".md") else table))
        write_atomically(paths[-1], content if isinstance(content, str) else encoded(content, "png"))
    return paths
