"""Sources of problems besides the generator: rows of files, their formats, splits and duplicates.

Called by `forge/data/problems.py`, and while a run is prepared. Nothing here runs a problem's code.
"""
