"""Engines that an interpreter can run, and their versions.

Called by `replicas`, `forge plan` and `forge doctor` before anything starts. Never imports an
engine.
"""
