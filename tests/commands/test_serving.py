"""`forge serve` uses exactly the GPUs that `[devices]` gives its engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.commands import serve as serving
from forge.commands.serve import ServeRequest
from forge.config.load import load_experiment
from forge.errors import ConfigError, MachineError
from forge.process.devices import Gpu, Vendor
from forge.runner.plan.machine import Machine
from forge.serve.weights import Weights

EXPERIMENT = """
name = "x"
[model]
path = "{path}"
[devices]
gpus = "auto"
serve = 2
judge = 2
train = 4
[serve]
replicas = 2
engine = "vllm"
[[stage]]
kind = "eval"
"""


def make_machine(num_gpus: int) -> Machine:
    gpus = tuple(
        Gpu(
            vendor=Vendor.NVIDIA, index=index, uuid=f"GPU-{index}", name="H200",
            memory_bytes=140 << 30, free_bytes=139 << 30,
        )
        for index in range(num_gpus)
    )  # fmt: skip
    return Machine(
        cores=16, memory_bytes=1 << 40, free_disk_bytes=1 << 40, gpus=gpus,
        engines=frozenset({"vllm", "llama", "hf"}),
    )  # fmt: skip


@pytest.fixture
def found(tmp_path: Path) -> serving._ServedModel:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    file = tmp_path / "x.toml"
    file.write_text(EXPERIMENT.format(path=tmp_path))
    return serving._ServedModel(
        experiment=load_experiment(file), weights=Weights(full=tmp_path), model="x"
    )


def test_engines_get_their_gpus_and_trainer_and_judges_get_none(
    found: serving._ServedModel,
) -> None:
    placement = serving._place(found, make_machine(8))
    assert placement.engine == "vllm"
    assert [len(uuids) for uuids in placement.serve_uuids] == [1, 1]
    assert len(placement.gpus) == 2
    assert placement.train == placement.judge == ()


def test_too_few_gpus_for_the_engines_are_a_machine_error(found: serving._ServedModel) -> None:
    with pytest.raises(MachineError, match="needs 2 GPUs"):
        serving._place(found, make_machine(1))


def test_a_run_takes_no_overrides(tmp_path: Path) -> None:
    request = ServeRequest(source="run-1", overrides=("serve.slots=4",), socket=tmp_path / "s")
    with pytest.raises(ConfigError, match="--set is for an experiment file"):
        serving.serve(request, store_dir=tmp_path, say=lambda _text: None)
