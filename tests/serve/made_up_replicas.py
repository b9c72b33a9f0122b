"""Real `Replicas` over fake children and clients: no process, no socket."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forge.config.schema import ServeTable
from forge.process.child import ChildSpec
from forge.serve.replicas import Replicas
from forge.serve.weights import Weights


class Client:
    """A fake ReplicaClient whose requests succeed unless `failures` are left."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, int]] = []
        """Directory name and version of each load."""
        self.loaded = ""
        self.is_asleep = False
        self.failures: list[Exception | None] = []
        """Outcomes of the next loads; None: acknowledged but not done."""

    async def load_weights(self, path: Path, *, version: int) -> float:
        self.loads.append((path.name, version))
        if not self.failures:
            self.loaded = path.name
        elif (failure := self.failures.pop(0)) is not None:
            raise failure
        return 0.0

    async def score(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> list[float]:
        return [0.0 if self.loaded == "new" else -1.0] * len(completion_ids)

    async def sleep(self) -> None:
        self.is_asleep = True

    async def wake(self) -> None:
        self.is_asleep = False


def made_up_replicas(folder: Path, *clients: Any) -> Replicas:
    """Replicas that are up with the weights `folder / "old"`, version 0."""
    weights = Weights(full=folder / "old")
    specs = [
        ChildSpec(
            name=f"serve-{index}", argv=("x",), log_path=folder / "log", env={}, config={},
            socket_path=folder / f"{index}.sock",
        )
        for index in range(len(clients))
    ]  # fmt: skip
    table = ServeTable(replicas=len(clients), request_timeout_s=5)
    replicas = Replicas(specs, table=table, weights=weights, stop_token_ids=())
    for replica, client in zip(replicas.all, clients, strict=True):
        come_up(replica, client)
    return replicas


def come_up(replica: Any, client: Any) -> None:
    """Set the state that `keep` sets when the child is up with its first weights."""
    replica._client = client
    replica._child, replica._has_process = SimpleNamespace(is_alive=True), True
    replica._served = replica.wanted
    replica.health = {"features": ["sleep"]}
    replica.features = frozenset({"sleep"})
    replica._on_up()


def go_down(replica: Any) -> None:
    """Set the state that `keep` sets after a death."""
    replica._child = replica._served = None
    replica.health = {}
