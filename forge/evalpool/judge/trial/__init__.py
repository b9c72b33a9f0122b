"""Judges one candidate: capture, policy, compilation, checked calls, verdict.

The judge's side, trusted and without candidate code. Called by the judge's server; asks children
through the spawner and compares what they left in memory.
"""
