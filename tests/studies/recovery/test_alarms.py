"""The count of false alarms on recorded curves."""

import numpy as np

from studies.recovery.alarms import alarms, summary


def test_it_names_the_curves_with_alarms_and_counts_them() -> None:
    t = np.arange(1000)
    noise = 0.05 * np.random.default_rng(0).standard_normal(1000)
    healthy = 1 + 3 * np.exp(-t / 100) + noise
    diverged = healthy + 2.0 * (t >= 500)
    assert alarms(healthy) == []
    [(at, reason)] = alarms(diverged)
    assert 500 < at <= 520
    assert "the loss rose from" in reason
    lines = summary([{"name": "a", "losses": healthy}, {"name": "b", "losses": diverged}]).splitlines()
    assert lines[0].startswith(f"b: loss {at} of 1000: the loss rose from")
    assert lines[-1] == "alarms on 1 of 2 curves"
