"""Data as pure functions of (seed, step): text, tokens, batches and images.

There is no loader state. A run resumes exactly without saving any, and each rank can make its slice of any batch::

    text      turns text into tokens              shards    token shards on disk
    batches   windows of tokens, by (seed, step)  images    pictures with labels, by (seed, step)
"""

from .batches import batch, training_batches, validation_batches
from .shards import Corpus
from .text import cache_folder, prepare

__all__ = ["Corpus", "batch", "cache_folder", "prepare", "training_batches", "validation_batches"]
