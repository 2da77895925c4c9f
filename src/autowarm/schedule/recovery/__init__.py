"""Recovery from a loss spike or a divergence: notices it, goes back to a copy of the healthy run, and goes on."""

from .guard import Guard, Recovery
from .order import Order, check_recover

__all__ = ["Guard", "Order", "Recovery", "check_recover"]
