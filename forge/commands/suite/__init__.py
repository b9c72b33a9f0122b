"""`forge eval`: any checkpoint or server on a suite of problems, as a run of one evaluation.

Called by the command line. Makes an experiment of the model and the suite and gives it to the
supervisor, so that the loop, the judge, the store and `forge resume` are those of every run.
"""
