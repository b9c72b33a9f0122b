"""The judge's two questions: is it the same function, in float64, and does it lose only what the
protocol allows, in the problem's own types.

Called by the oracle, which draws input sets and runs the reference, and by the judge, which widens
a candidate's program and compares. Never imports `capture`, `compiler` or `execute`.
"""
