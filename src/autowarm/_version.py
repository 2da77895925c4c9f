"""The version, and how an extra is installed, below all that needs them."""

__version__ = "0.1.0"


def install(extra: str) -> str:
    """Return the command that installs an extra. No package index has autowarm, so it is run in a checkout."""
    return f"pip install '.[{extra}]' in a checkout of autowarm"
