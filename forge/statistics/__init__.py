"""Estimates with intervals: pass@k, evaluations, paired comparisons. Pure functions, seeded.

Used by the evaluate stage, `forge compare` and the benches; imports nothing but records.
"""
