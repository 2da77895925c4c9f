"""What `recover=` is worth: false alarms on recorded curves, and what faults cost with it and without."""
