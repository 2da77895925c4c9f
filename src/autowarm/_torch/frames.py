"""Where a warning points to."""

import sys


def frames_of_ours() -> int:
    """How many frames lie between a warning and the user's line that caused it, as ``stacklevel``."""
    frame, depth = sys._getframe(1), 1
    ours = tuple(f"autowarm.{room}" for room in ("_torch", "optim", "others", "schedule", "integrations", "smoothness"))
    ours += ("torch.optim", "torch.utils._contextlib")  # which call our hooks
    while frame is not None and frame.f_globals.get("__name__", "").startswith(ours):
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    return depth
