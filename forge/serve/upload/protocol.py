# pyright: strict
"""Header, statuses and words that both sides of an upload use."""

CLAIM = "X-Forge-Claim"
"""Header with the key of a run's claim."""
CONFLICT = 409
"""Another run publishes, the claim is unknown, or an upload continues elsewhere."""
DAMAGED = 422
"""The bytes of a file are not those of its digest."""
FULL = 507
"""Insufficient storage: the client's run ends instead of trying again."""
SAME = "install the same version on both"
"""End of the refusal of another version of forge, which no waiting repairs."""
