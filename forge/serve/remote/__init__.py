"""Engines that forge did not start: servers behind a URL (`[serve] url`), for evaluations and
searches.

Called by the runner and by commands. Never starts a process.
"""
