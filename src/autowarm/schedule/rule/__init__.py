"""Rules set the rate: they turn losses into a share of the peak rate.

A `Timeline` says where warm-up and decay lie. `HostRule` holds everything that changes during a run, in plain numbers,
and is the readable reference; `DeviceRule` follows the same formula on tensors, so that the host never waits. Either,
or a search for the peak rate, is a run's `Phase`.
"""

from .device import DeviceRule, placed
from .rule import HostRule, Notices, Phase
from .timeline import OPEN_HORIZON, Plan

__all__ = ["OPEN_HORIZON", "DeviceRule", "HostRule", "Notices", "Phase", "Plan", "placed"]
