# pyright: strict
"""The one run that may publish to a server.

Pure: the time is an argument. Called by `endpoints`. Promises: a second run is refused with the
name of the first; the same run, resumed, continues at once; a run that ended without a word holds
the server for `SILENT_S`, which is longer than a network is usually away.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

SILENT_S = 120.0
"""Silence after which another run may publish."""


@dataclass(slots=True, kw_only=True)
class PublishClaim:
    """The run that publishes."""

    owner: str
    """Run, machine and directory, for messages; the same after `forge resume`."""
    key: str
    """Secret of this attempt of the run, which every request repeats."""
    seen_at: float


class Claims:
    """At most one claim."""

    def __init__(self) -> None:
        self._claim: PublishClaim | None = None

    def take(self, owner: str, *, now: float) -> PublishClaim | str:
        """A new claim, which ends the one before; or the reason why not."""
        held = self._claim
        if held is not None and held.owner != owner and now - held.seen_at < SILENT_S:
            return (
                f"{held.owner} publishes here (last seen {now - held.seen_at:.0f} s ago); one run "
                f"at a time: stop it, use another server, or wait until it was silent for "
                f"{SILENT_S:.0f} s"
            )
        self._claim = PublishClaim(owner=owner, key=secrets.token_hex(16), seen_at=now)
        return self._claim

    def refusal(self, key: str, *, now: float) -> str:
        """Empty if `key` is that of the claim, whose time begins again; else the reason."""
        held = self._claim
        if held is not None and secrets.compare_digest(held.key.encode(), key.encode()):
            held.seen_at = now
            return ""
        if held is None:
            return "no run publishes here: claim the server first (it was started again)"
        return f"{held.owner} publishes here now"

    def release(self, key: str) -> None:
        """End the claim, if it has this key."""
        if self._claim is not None and secrets.compare_digest(
            self._claim.key.encode(), key.encode()
        ):
            self._claim = None
