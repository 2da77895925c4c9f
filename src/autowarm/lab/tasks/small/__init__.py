"""The lab's small tasks, which train in seconds on one core: a file each, whose name is the task's."""
