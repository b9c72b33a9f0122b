"""`forge train --replay RUN:STEP`: a recorded training step, trained again without engine or judge.

`recorded` finds what the run kept of the step, `trainer` runs one trainer child on it, `replay`
joins both, `report` compares the metrics. Called by the command line. Nothing here writes to the
run.
"""
