"""Child processes of `forge doctor`: each tries one thing that a run needs, and reports in lines.

Started by `forge/commands/doctor/probe.py` with a deadline, `imports` also in the interpreter of an
engine. Imports torch and triton after the lease is held, and nothing of forge but `process` and the
judge's sandbox.
"""
