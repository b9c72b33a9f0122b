"""The terminal monitor: its own process, reads a run's database, acts through `forge.control`."""
