"""Servers behind a URL (`[serve] url`), which forge did not start. Never starts a process."""
