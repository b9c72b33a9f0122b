"""Results of a suite: the evaluation of a run as JSON, as a table, and as a row of a leaderboard.

Called by the runner at the end of a run with `eval.suite`, and by `forge eval`. Never imports the
supervisor.
"""
