"""The generator's problem families: the closed world of the quickstart.

A family draws sizes and renders the source of a problem and of its answer; ops.py has the chains of
operations that all families share. Called by `forge.data.generator`. The six stay as they are:
recorded runs have their problems. Others come from files, such as those of `forge data harvest`.
"""

from forge.data.families.kinds import FAMILIES

__all__ = ["FAMILIES"]
