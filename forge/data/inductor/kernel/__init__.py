"""The body of a kernel in Triton's own words: without Inductor's functions (runtime_functions.py),
aliases (inlining.py) and unused values (body.py).

Called by `forge.data.inductor.rewrite`; imports nothing but that room's trees and outcomes.
"""
