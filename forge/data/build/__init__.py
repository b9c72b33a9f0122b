"""Training rows from public data sets: one row through its steps, and the choice among all rows.

`steps.py` has the order. Everything here is pure or reads and writes files; processes and judge
are joined by `forge/commands/data_build.py`. Never imports process, evalpool or the runner.
"""
