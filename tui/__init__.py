"""Looking on: a process of its own that reads a run's database read-only and acts through `forge.control`."""
