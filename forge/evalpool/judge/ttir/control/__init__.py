"""Control flow over groups of instances.

Where instances of a group take different ways, the group is split: each part runs alone, on the
values of its own instances, and what it leaves is merged. Called by `steps/dispatch.py` for steps,
and by `evaluate` for functions. Never imports `steps`.
"""
