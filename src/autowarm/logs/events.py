"""Reads TensorBoard's event files, by the package tensorboard, which is imported only here."""

import math
from pathlib import Path
from typing import Any

from .log import LogError


def is_events(start: bytes) -> bool:
    """Whether a file begins as TensorBoard's event files do: a record that names the version of its format."""
    return b"brain.Event:" in start[:64]


def rows_of_events(path: Path) -> list[dict[str, Any]]:
    """Return the scalars of an event file, or of a folder of them, as rows with a step and one value."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise LogError(f"{path}: reading TensorBoard's events needs its package: pip install tensorboard") from None
    # 0 keeps every event; a step that comes again after a resume is ours to put in order.
    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0}, purge_orphaned_data=False)
    events.Reload()
    tags = events.Tags()
    rows = [
        {"step": event.step, tag: event.value if math.isfinite(event.value) else None}
        for tag in tags["scalars"]
        for event in events.Scalars(tag)
    ]
    # TensorFlow's writer keeps a scalar as a tensor.
    rows += [
        {"step": event.step, tag: event.tensor_proto.float_val[0]}
        for tag in tags["tensors"]
        for event in events.Tensors(tag)
        if len(event.tensor_proto.float_val) == 1
    ]
    if not rows:
        raise LogError(
            f"{path}: the event files hold no scalars (tags: {', '.join(map(str, tags['tensors'])) or 'none'})"
        )
    return rows
