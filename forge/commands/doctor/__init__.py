"""`forge doctor`: facts of this machine, findings from them, and the fix of each problem.

`host.py` is the table of checks; `packages.py` and `gpus.py` judge what `probes.py`, a child
process that tries what a run will do, reports; `run.py` is `forge doctor RUN`. Called by
`forge/cli/`. Never imports torch.
"""
