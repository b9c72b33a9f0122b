"""Engines that forge did not start: servers behind a URL (`[serve] url`), for evaluations and
searches.

Called by the runner and by commands. Runs that train send their weights by `forge.serve.upload`.
Never starts a process.
"""
