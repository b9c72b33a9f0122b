"""How new weights take over from old ones while turns run.

    stop      every turn ends, then all replicas load: nothing is generated meanwhile
    rolling   replica after replica, each once its own turns have ended: the others go on
    live      at once: a turn keeps the adapter that it began with, or goes on under new weights

The synchronous loop has nothing running when it publishes, so for it they are one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from forge.serve.port import OLD_ADAPTERS

if TYPE_CHECKING:
    from collections.abc import Collection


class Turnover(StrEnum):
    """What becomes of running turns."""

    STOP = "stop"
    ROLLING = "rolling"
    LIVE = "live"


def choose_turnover(
    *,
    max_staleness: int,
    in_flight: Literal["turn", "keep"],
    is_adapter: bool,
    num_replicas: int,
    features: Collection[str],
) -> Turnover:
    """The one that holds generation up least and still gives each turn one set of weights, unless
    `in_flight` gives that up.

    Args:
        is_adapter: what the stage publishes.
        features: of the engine.
    """
    if max_staleness == 0:
        return Turnover.STOP
    if in_flight == "keep" or (is_adapter and OLD_ADAPTERS in features):
        return Turnover.LIVE
    return Turnover.ROLLING if num_replicas > 1 else Turnover.STOP
