"""A trainer that runs out of GPU memory reports its numbers; after a restart at half the scale it
uses smaller micro-batches."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import anyio
import pytest
import torch

from forge.config.schema import GrpoStage, RolloutTable, SftStage
from tests.train.conftest import FakeSupervisor, Served
from tests.train.samples import make_samples
from tests.train.trained import settings_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

GRPO = GrpoStage(kind="grpo", steps=1, learning_rate=1e-3, micro_batch_tokens=100)
SFT = SftStage(kind="sft", steps=2, learning_rate=1e-3, batch_size=6)


def run_out(*args: Any, **kwargs: Any) -> NoReturn:
    """Fail like torch's allocator."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def get_no_context(*args: Any) -> NoReturn:
    """Fail like CUDA itself, for which torch has no class of its own."""
    raise torch.AcceleratorError("CUDA error: out of memory")


@pytest.fixture(autouse=True)
def without_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the main thread may install the handler of SIGTERM."""
    from forge.train.trainer.child.control import StopFlag

    monkeypatch.setattr(StopFlag, "install", lambda self: None)


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    from forge.train.trainer.child.control import SupervisorClient

    found: list[dict[str, Any]] = []
    monkeypatch.setattr(SupervisorClient, "failed", lambda self, **numbers: found.append(numbers))
    return found


def test_sft_reports_the_halved_size_after_a_restart(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    failures: list[dict[str, Any]],
) -> None:  # fmt: skip
    from forge.train.trainer import sft as sft_stage

    monkeypatch.setattr(sft_stage, "make_trainer", run_out)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input_ids": [5, 6], "completion_mask": [0, 1]}\n')
    stage = SFT.model_copy(update={"micro_batch_tokens": 80})
    settings = settings_of(stage, tiny_model, tmp_path, rows_path=rows, micro_batch_scale=0.5)
    with pytest.raises(torch.OutOfMemoryError):
        sft_stage.train_answers(settings)
    assert [each["micro_batch_tokens"] for each in failures] == [40]


@pytest.mark.slow
def test_the_numbers_of_a_full_gpu_are_reported_before_the_trainer_ends(
    tiny_model: Path,
    supervisor: FakeSupervisor,
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from forge.train.trainer import grpo as grpo_stage
    from forge.train.trainer.grpo import TurnTrainer

    class Full(TurnTrainer):
        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return run_out()

    monkeypatch.setattr(grpo_stage, "TurnTrainer", Full)
    supervisor.batches = [make_samples(4, seed=1)]
    settings = settings_of(
        GRPO, tiny_model, tmp_path, control_socket=supervisor.socket, micro_batch_scale=0.5
    )

    async def train() -> None:
        async with served(supervisor):
            with pytest.raises(torch.OutOfMemoryError):
                await anyio.to_thread.run_sync(grpo_stage.train_turns, settings)

    anyio.run(train)
    assert supervisor.failed == [
        {"kind": "oom", "micro_batch_tokens": 50, "peak_bytes": 0, "free_bytes": 0, "rank": 0}
    ]
    assert not supervisor.trained


@pytest.mark.slow
def test_a_publish_that_fails_while_the_trainer_waits_for_a_batch_ends_the_wait(
    tiny_model: Path,
    supervisor: FakeSupervisor,
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without it the trainer would wait forever: the next batch may need those weights."""
    from forge.train.trainer import grpo as grpo_stage

    monkeypatch.setattr(grpo_stage, "write_and_offer", run_out)
    supervisor.batches, supervisor.at_end = [make_samples(4, seed=1)], "wait"
    settings = settings_of(
        GRPO.model_copy(update={"steps": 2}), tiny_model, tmp_path,
        control_socket=supervisor.socket,
        rollout=RolloutTable(max_staleness=1),
    )  # fmt: skip

    async def train() -> None:
        async with served(supervisor):
            with pytest.raises(torch.OutOfMemoryError):
                await anyio.to_thread.run_sync(grpo_stage.train_turns, settings)

    anyio.run(train)
    assert [each["step"] for each in supervisor.trained] == [1]
    assert [each["kind"] for each in supervisor.failed] == ["oom"]


@pytest.mark.parametrize("kind", ["sft", "grpo"])
def test_a_gpu_too_full_to_join_the_other_ranks_is_reported(
    kind: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    failures: list[dict[str, Any]],
) -> None:  # fmt: skip
    from forge.train.trainer import grpo as grpo_stage
    from forge.train.trainer import sft as sft_stage
    from forge.train.trainer.child import control

    monkeypatch.setattr(control, "join_process_group", get_no_context)
    stage = {"sft": SFT, "grpo": GRPO}[kind]
    settings = settings_of(stage, tiny_model, tmp_path, rows_path=tmp_path / "rows.jsonl")
    train = {"sft": sft_stage.train_answers, "grpo": grpo_stage.train_turns}[kind]
    with pytest.raises(torch.AcceleratorError):
        train(settings)
    assert [each["kind"] for each in failures] == ["oom"]


@pytest.mark.parametrize(
    ("text", "is_reported"),
    [
        ("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("NCCL error: ncclUnhandledCudaError: Cuda failure 2 'out of memory'", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_a_full_gpu_is_reported_whichever_library_could_not_allocate(
    text: str, is_reported: bool
) -> None:
    from forge.train.trainer.child.parallel import reported_when_full

    reported: list[dict[str, Any]] = []
    control: Any = SimpleNamespace(failed=lambda **numbers: reported.append(numbers))
    with (
        pytest.raises(torch.AcceleratorError, match=re.escape(text[:20])),
        reported_when_full(control, rank=1, micro_batch_tokens=50),
    ):
        raise torch.AcceleratorError(text)
    assert [each["kind"] for each in reported] == ["oom"] * is_reported


def test_a_gpu_too_full_for_a_context_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from forge.train.trainer.child.parallel import reported_when_full

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", get_no_context)
    reported: list[dict[str, Any]] = []
    control: Any = SimpleNamespace(failed=lambda **numbers: reported.append(numbers))
    with (
        pytest.raises(torch.AcceleratorError),
        reported_when_full(control, rank=0, micro_batch_tokens=50),
    ):
        get_no_context()
    assert [(each["kind"], each["free_bytes"]) for each in reported] == [("oom", 0)]


@pytest.mark.parametrize("packing", [False, True])
def test_half_the_scale_cuts_micro_batches_of_half_the_size(
    tiny_model: Path, tmp_path: Path, packing: bool
) -> None:
    from forge.train.batch import write_batch
    from forge.train.trainer.child.control import TakenBatch
    from forge.train.trainer.grpo import make_trainer

    path = tmp_path / "b.npz"
    write_batch(path, make_samples(12, seed=1))
    client: Any = SimpleNamespace(
        take=lambda step: TakenBatch(step=1, samples_path=path, wait_s=0.0)
    )
    widest = []
    stage = GRPO.model_copy(update={"packing": packing})
    for scale in (1.0, 0.5):
        settings = settings_of(stage, tiny_model, tmp_path, micro_batch_scale=scale)
        trainer: Any = make_trainer(settings, client=client)
        widest.append(max(m.num_forwarded for m in trainer.next_batch()))
    assert 50 < widest[0] <= 100
    assert widest[1] <= 50
