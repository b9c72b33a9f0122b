"""Judging kernels. `pool` (host, no torch) owns the judges; `extract` finds the candidate in a
completion; `judge/` is the child process that runs it.
"""
