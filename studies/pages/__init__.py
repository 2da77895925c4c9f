"""The pages of the studies, computed from their rows.

- `tables`: the tables of docs/evidence.md.      - `figures`: its figures.
- `peak`: those of docs/which-rate.md.      - `write`: puts all of them into a checkout.
"""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from autowarm.lab.analysis.figures import encoded
from autowarm.lab.files import write_atomically


def write_files(root: Path, files: Mapping[str, str | Figure]) -> list[Path]:
    """Write tables, as CSV, into docs/data/tables, and figures, as PNG, into docs/figures.

    Args:
        root: root of the repository.
        files: contents by name.

    Returns:
        The paths of the files written.
    """
    paths = []
    for name, content in files.items():
        table = f"docs/data/tables/{name}.csv" if isinstance(content, str) else f"docs/figures/{name}.png"
        paths.append(root / table)
        write_atomically(paths[-1], content if isinstance(content, str) else encoded(content, "png"))
    return paths
