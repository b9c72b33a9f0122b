"""Semantics of Triton's operations: pure functions over numpy arrays.

Called by the evaluator of `ttir`; `values.py` there says how values are represented.
"""
