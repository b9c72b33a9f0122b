"""Looking on: a process of its own, reads a run's database read-only, acts through `forge.control`."""
