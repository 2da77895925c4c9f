"""Learning-rate warm-up that sets itself, for norm-constrained optimizers.

`AdaptiveWarmup` schedules the rate; `Muon`, `Lion`, `SignSGD`, `NormSGD` and `LMO` take the steps. `geometry` holds the
norms both are stated in. The experiments live in `autowarm.lab`, which this package never imports.
"""

from .optim import LMO, Lion, Muon, NormSGD, SignSGD
from .schedule import AdaptiveWarmup

__all__ = ["LMO", "AdaptiveWarmup", "Lion", "Muon", "NormSGD", "SignSGD"]
__version__ = "0.1.0"
