"""`forge doctor`: facts of this machine, findings from them, and the fix of each problem.

`examine.py` reads the facts and runs the `probes`, child processes that try what a run will do; the
other files each turn one subject's facts into findings, as pure functions. Called by `forge/cli/`.
Never imports torch.
"""
