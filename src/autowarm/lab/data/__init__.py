"""Data as pure functions of (seed, step): text to tokens to batches, and images.

There is no loader state, so nothing has to be saved to resume exactly, and any rank can make its slice of any batch::

    text      a corpus of text as tokens          shards    token shards on disk, written and read
    batches   windows of tokens, by (seed, step)  tokenise  FineWeb, or any documents, to shards
    images    pictures with labels, by (seed, step)
"""

from .batches import batch, validation_batches
from .shards import Corpus
from .text import cache_folder, prepare

__all__ = ["Corpus", "batch", "cache_folder", "prepare", "validation_batches"]
