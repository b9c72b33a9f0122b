"""Estimates with intervals: pass@k, fast_p, bootstraps clustered by problem. Pure functions."""
