"""`forge data build` and `forge data show`: training rows from data sets, and a look at them.

`build.py` joins the pure steps of `forge/data/build/` with processes (`worker.py`) and with the
judge (`judging.py`). Called by the command line only; never imports the runner.
"""
