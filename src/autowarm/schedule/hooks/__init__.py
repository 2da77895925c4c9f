"""What connects the schedule to an optimizer: its updates, its groups, other schedulers, warnings."""
