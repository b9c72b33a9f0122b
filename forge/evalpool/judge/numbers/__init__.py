"""Inputs that a wrong kernel fails on, and the tolerance that a right one passes.

Called by the oracle, which draws inputs and runs the reference, and by the judge, which compares.
Never imports `capture`, `compiler` or `execute`.
"""
