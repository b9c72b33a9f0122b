"""Weights from the trainer to the replicas: publish, load, verify, and what a resumed run loads.

Called by `forge/runner/stages/` and `prepare_run.py`. Never imports them.
"""
