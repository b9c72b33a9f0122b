"""Fake replicas and weight directories for the tests of publishing."""

from pathlib import Path
from typing import Any, Literal

from forge.runner.weights.resume import StartingWeights
from forge.runner.weights.sync import Probe, TurnGate, WeightSync
from forge.serve.weights import Weights
from tests.runner.stages.desks import Recorder

PROBE = Probe(prompt_ids=[1], completion_ids=[2, 3], logprobs=[-1.0, -2.0])


class FakeServing:
    """Replicas whose answers lag `behind` publishes behind what they acknowledge."""

    def __init__(self, *, behind: int = 0) -> None:
        self.behind = behind
        self.published: list[int] = []
        self.rolled: list[bool] = []

    async def publish(self, path: Path, version: int, *, rolling: bool = False) -> None:
        self.published.append(version)
        self.rolled.append(rolling)

    async def probe(self, prompt_ids: Any, completion_ids: Any) -> list[list[float]]:
        lag = 0.008 * self.behind
        self.behind = max(self.behind - 1, 0)
        return [[-1.0, -2.0], [-1.0 + lag, -2.0 - lag]]


def weight_sync(
    tmp_path: Path, serving: Any, *, precision: Literal["exact", "fast"] = "exact"
) -> tuple[WeightSync, Recorder]:
    sink: Any = Recorder()
    sync = WeightSync(
        StartingWeights(weights=Weights(full=tmp_path, version=7), last_version=7),
        attempt=1,
        precision=precision,
        gate=TurnGate(timeout_s=5),
        sink=sink,
    )
    sync.serving = serving
    return sync, sink


def new_dir(tmp_path: Path, name: str) -> Path:
    (tmp_path / name).mkdir()
    (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    return tmp_path / name
