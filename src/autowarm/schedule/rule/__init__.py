"""Rules set the rate: they turn losses into a share of the peak rate.

`Formula` states the schedule once, for floats and tensors alike. `HostRule` follows it with plain numbers and is the
readable reference; `DeviceRule` follows it on tensors, so that the host never waits. The scheduler uses either through
the interface `Rule`. `reduce` combines the losses of all micro-batches and ranks into one.
"""

from .device import DeviceRule, rule_for
from .formula import Formula, Ramp
from .host import HostRule, Notices, Rule
from .reduce import Observation, Ranks

__all__ = ["DeviceRule", "Formula", "HostRule", "Notices", "Observation", "Ramp", "Ranks", "Rule", "rule_for"]
