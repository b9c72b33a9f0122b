"""Weights of a run: the directory of its model, publish, load, verify, resume."""
