"""Torch as on a machine that has the target's GPU: properties, guards, Inductor's functions.

Used by `capture`, whose recorder turns what a candidate does there into nodes. Imports nothing of
it.
"""
