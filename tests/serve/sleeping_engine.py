"""An engine child with invented tokens that can sleep, like one on a GPU. For `test_sleep.py`.

Its endpoints are the real ones. The first prompt token of a request is the time that it takes, in
tenths of a second.
"""

from collections.abc import Callable
from pathlib import Path

import anyio
import numpy as np

from forge.process.lease import hold_lease
from forge.records import Finish
from forge.serve.engine.endpoints import serve_engine
from forge.serve.port import SLEEP, Chunk, EngineSample, EngineStatus, Request


class Sleeper:
    name = "sleeper"
    features = frozenset({SLEEP})

    def __init__(self, version: int) -> None:
        self._version = version
        self._running = 0

    async def check(self, request: Request) -> None:
        return None

    async def generate(
        self, request: Request, *, on_chunk: Callable[[Chunk], None] | None = None
    ) -> None:
        self._running += request.n
        await anyio.sleep(int(request.prompt[0]) / 10)
        self._running -= request.n
        request.samples = [
            EngineSample(
                request=request,
                index=index,
                tokens=np.arange(3, dtype=np.int32),
                logprobs=np.zeros(3, np.float32),
                versions=np.full(3, self._version),
                finish=Finish.LENGTH,
            )
            for index in range(request.n)
        ]

    async def score(self, prompt: np.ndarray, completion: np.ndarray) -> list[float]:
        return [0.0] * completion.size

    async def load_weights(self, path: Path, *, version: int) -> None:
        self._version = version

    async def sleep(self) -> None:
        return None

    async def wake(self) -> None:
        return None

    def status(self) -> EngineStatus:
        return EngineStatus(version=self._version, running=self._running)


if __name__ == "__main__":
    config = hold_lease()
    serve_engine(Sleeper(config["version"]), config)
