"""Problems, answers and rows from PyTorch code: what `forge data harvest` makes of its sources.

`records.py` has the shapes that pass between sources, answers and the pipeline. Everything here
reads code by its syntax: no problem's code is imported or run on the host. Processes and judge are
joined by `forge/commands/data_harvest.py`. Never imports process, evalpool or the runner.
"""
