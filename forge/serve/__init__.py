"""The model answering: engines as child processes, one client for all of them, replicas kept alive.

`open_replicas` is what a run uses; `ReplicaClient` speaks to any one engine. Names are imported
when they are asked for: a plan needs `engines` and not numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge.serve.client import ReplicaClient, StreamChunk
    from forge.serve.installed.engines import check_engine
    from forge.serve.replicas import Replicas, open_replicas
    from forge.serve.stats import EngineLoad, ServeStats
    from forge.serve.weights import Weights

__all__ = [
    "EngineLoad",
    "ReplicaClient",
    "Replicas",
    "ServeStats",
    "StreamChunk",
    "Weights",
    "check_engine",
    "open_replicas",
]

_HOMES = {
    "ReplicaClient": "client",
    "StreamChunk": "client",
    "check_engine": "installed.engines",
    "Replicas": "replicas",
    "open_replicas": "replicas",
    "EngineLoad": "stats",
    "ServeStats": "stats",
    "Weights": "weights",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
