"""Engines that forge did not start, and teachers: servers behind a URL, for evaluations (`[serve]
url`) and for `forge data distill`.

Called by the runner and by commands. Runs that train send their weights by `forge.serve.upload`.
Never starts a process.
"""
