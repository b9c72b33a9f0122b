"""The model answering: engines as child processes, one client for all of them, replicas kept alive.

`open_replicas` is what a run uses; `ReplicaClient` speaks to any one engine.
"""

from forge.serve.client import ReplicaClient, StreamChunk
from forge.serve.engines import check_engine
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
