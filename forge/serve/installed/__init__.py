"""Checks which engines an interpreter can run, and in which versions.

Called by `replicas`, `forge plan` and `forge doctor` before anything starts. Never imports an
engine.
"""
