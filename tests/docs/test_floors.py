"""The rooms import one way, as the contributors' picture of them says."""

import runpy
from pathlib import Path

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "floors.py"))


def test_no_room_of_the_library_imports_one_above_it_or_the_lab() -> None:
    rooms = {room: others for room, others in SCRIPT["imports"]().items() if not room.startswith("lab.")}
    level = SCRIPT["floors"](rooms)
    assert {"schedule", "optim", "geometry", "losses"} < rooms.keys()
    for room, others in rooms.items():
        assert not [other for other in others if other.startswith("lab.") or level[other] >= level[room]], room
