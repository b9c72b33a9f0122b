"""Checks between keys: keys that exclude or need each other, files that must exist.

Called by `forge/config/load.py` through `check.check`. Never imports loading.
"""
