"""What sets the rate: losses in, a share of the peak rate out.

`Formula` states the schedule once, for floats and tensors alike. `HostRule` follows it with plain numbers and is the
readable reference; `DeviceRule` follows it on tensors, so that the host never waits. Both are a `Rule`, which is all
that the scheduler knows of them. `reduce` makes one loss of those of all micro-batches and ranks.
"""

from .device import DeviceRule, rule_for
from .formula import Formula, Ramp
from .host import HostRule, Notices, Rule
from .reduce import Observation, Ranks

__all__ = ["DeviceRule", "Formula", "HostRule", "Notices", "Observation", "Ramp", "Ranks", "Rule", "rule_for"]
