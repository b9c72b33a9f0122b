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
        raise AssertionError("nobody publishes here")

    async def probe(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int]
    ) -> list[list[float]]:
        raise AssertionError("nobody probes here")

    async def sleep(self) -> None:
        raise AssertionError("nobody sleeps here")

    async def wake(self) -> None:
        raise AssertionError("nobody sleeps here")
