"""Training rows from public data sets: one row through its steps, and the choice among all rows.

`steps.py` has the order. Everything here is pure or reads and writes files: `forge/commands/data/`
starts the processes, and joins the judge. Never imports process, evalpool or the runner.
"""
