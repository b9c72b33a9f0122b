"""The terminal monitor: a process of its own that reads a run's database and acts through
`forge.process.control`."""
