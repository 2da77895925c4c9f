"""The version, below all that needs it."""

__version__ = "0.1.0"
