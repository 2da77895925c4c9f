"""Draw the floors of the house, from the imports of its rooms: `python docs/floors.py`.

A room is a folder or a module of `autowarm`, or of `autowarm.lab`. It stands above all that it imports; rooms that
import each other share a floor.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from autowarm._torch.plotting import BLUE, GREY, INK, ORANGE, styled
from autowarm.lab.analysis.figures import encoded

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "src" / "autowarm"


def imports() -> dict[str, set[str]]:
    """Return the rooms that each room imports."""
    found: dict[str, set[str]] = {room_of(file.relative_to(PACKAGE).parts): set() for file in PACKAGE.rglob("*.py")}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE).parts
        found[room_of(parts)] |= {room_of(name) for name in _named(ast.parse(file.read_text()), parts[:-1])}
    for outside in ("", "lab", "__main__", "_version"):  # the package itself, which only gathers names
        found.pop(outside, None)
    return {room: others & found.keys() - {room} for room, others in found.items()}


def room_of(parts: tuple[str, ...]) -> str:
    """Return the room of a path or a module's name within the package."""
    names = [part.removesuffix(".py") for part in parts if part != "__init__.py"]
    return ".".join(names[: 2 if names[:1] == ["lab"] else 1])


def _named(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = tuple((node.module or "").split(".")) if node.module else ()
            if node.level:
                base = package[: len(package) - node.level + 1] + module
            elif module[:1] == ("autowarm",):
                base = module[1:]
            else:
                continue
            for name in node.names:
                yield (*base, name.name) if base in ((), ("lab",)) else base


def floors(rooms: dict[str, set[str]]) -> dict[str, int]:
    """Return each room's floor: one above the highest that it imports."""
    below = {room: _reach(room, rooms) for room in rooms}

    def floor(room: str) -> int:
        return max((1 + floor(other) for other in below[room] if room not in below[other]), default=0)

    return {room: floor(room) for room in rooms}


def _reach(room: str, rooms: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [room]
    while left:
        new = rooms[left.pop()] - found
        found |= new
        left += new
    return found


def draw() -> Figure:
    """Draw the library on the left and the lab on the right, each from its lowest floor upwards."""
    rooms = imports()
    figure = Figure(figsize=(9.6, 5.2))
    for column, (title, lab, colour) in enumerate((("autowarm", False, BLUE), ("autowarm.lab", True, ORANGE))):
        axes = figure.add_subplot(1, 2, column + 1)
        within = {room: others for room, others in rooms.items() if room.startswith("lab.") == lab}
        level = floors({room: others & within.keys() for room, others in within.items()})
        for height in sorted(set(level.values())):
            names = sorted(room for room in level if level[room] == height)
            for index, name in enumerate(names):
                left, width = index / len(names), 1 / len(names)
                axes.barh(height, width - 0.015, left=left, height=0.8, color=colour, alpha=0.16, edgecolor=colour)
                size = 10 if len(names) < 5 else 7
                place = left + (width - 0.015) / 2, height
                axes.text(*place, name.removeprefix("lab."), ha="center", va="center", color=INK, fontsize=size)
        axes.set(title=title, xlim=(0, 1), ylim=(-0.6, max(level.values()) + 0.6))
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(False)
        axes.spines[["left", "bottom"]].set_visible(False)
    figure.subplots_adjust(left=0.02, right=0.98, top=0.93, bottom=0.09, wspace=0.06)
    figure.text(0.5, 0.03, "imports only what stands below; the lab stands on the library", ha="center", color=GREY)
    return figure


if __name__ == "__main__":
    (DOCS / "figures" / "floors.png").write_bytes(encoded(styled(draw)(), "png"))
