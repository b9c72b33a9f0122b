"""Inputs and parameters that a reference is run on: drawn from seeds, varied within their domain.

Called by the oracle. Uses the parent room for calls of the reference and for tolerances.
"""
