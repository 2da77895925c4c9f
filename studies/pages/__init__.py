"""The tables and figures of README and the pages, made of stored rows by ``python -m studies pages``."""
