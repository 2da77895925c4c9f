"""Learning-rate warm-up that sets itself, for norm-constrained optimizers."""

__version__ = "0.1.0"
