"""Numbers of examples of property tests that need another number than the default."""

from hypothesis import settings

WHOLE = 100
"""Default number of examples with the long tests; `tests/conftest.py` sets it and the quick one."""


def examples(num_whole: int) -> int:
    """The number to try now, for one that tries `num_whole` with the long tests."""
    return max(5, num_whole * settings().max_examples // WHOLE)
