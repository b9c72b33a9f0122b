"""State of every process of a run, as `forge status` and the monitor show it.

Called by `forge/runner/work.py`; served by the control socket. Never starts or stops anything.
"""
