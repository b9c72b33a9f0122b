"""Inputs, parameters and calls of a problem's reference, what they cost, and tolerances.

Called by the oracle, by `wide`, and by the judge. Never imports `capture`, `compiler` or `execute`.
"""
