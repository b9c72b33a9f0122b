"""`forge doctor`: facts of this machine, findings from them, and the fix of each problem.

`examine.py` has the table of checks; `probe.py` judges what `probes.py`, a child process that tries
what a run will do, reports; `run.py` is `forge doctor RUN`. Called by `forge/cli/`. Never imports
torch.
"""
