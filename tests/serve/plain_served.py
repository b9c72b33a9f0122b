"""A `Served` without weights over fake servers: the common part of replicas and remote servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from forge.serve.served import Served


class PlainServed(Served):
    @property
    def version(self) -> int:
        return 0

    @property
    def features(self) -> frozenset[str]:
        return frozenset()

    async def publish(self, path: Path, version: int, *, rolling: bool = False) -> None:
        raise AssertionError("no test publishes here")

    async def probe(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int]
    ) -> list[list[float]]:
        raise AssertionError("no test probes here")

    async def sleep(self) -> None:
        raise AssertionError("no test lets it sleep")

    async def wake(self) -> None:
        raise AssertionError("no test lets it sleep")
