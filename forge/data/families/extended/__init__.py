"""Families beyond the basic six: `problems.families` turns them on.

Each renders one kernel that a reader of the basic ones understands: convolution, pooling,
attention, lookup tables, scans, losses, norms over channels, products of transposed matrices.
Called by `forge.data.families`, which lists them; imports only what all families share there.
"""
