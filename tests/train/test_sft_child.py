"""The SFT child: killed midway and resumed, it ends with an undisturbed run's weights."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import torch

from forge.config.schema import ModelTable, RolloutTable, SftStage
from forge.train.durable import find_last_checkpoint
from forge.train.handle import TrainerJob, open_trainer

if TYPE_CHECKING:
    from tests.train.conftest import FakeSupervisor, Served

STAGE = SftStage(
    kind="sft", steps=9, learning_rate=3e-3, batch_size=8, save_every=3, warmup_steps=2
)


def write_rows(path: Path) -> None:
    """40 rows that count upwards, of different lengths; the first three tokens are prompt."""
    draw = random.Random(0)
    with path.open("w") as file:
        for _ in range(40):
            start, size = draw.randrange(5, 200), draw.randrange(6, 40)
            row = {
                "input_ids": list(range(start, start + size)),
                "completion_mask": [0] * 3 + [1] * (size - 3),
            }
            file.write(json.dumps(row) + "\n")


async def train(
    fake: FakeSupervisor, served: Served, *, model: Path, at: Path, kill_at: int
) -> str:
    """Run the child; killed outright once it has saved step `kill_at`."""
    saved = anyio.Event()
    fake.on_checkpoint = lambda step: saved.set() if step == kill_at else None
    async with (
        served(fake),
        open_trainer(
            TrainerJob(
                stage=STAGE,
                model=ModelTable(path=str(model)),
                model_dir=model,
                rows_path=at / "rows.jsonl",
                work_dir=at / "work",
                weights_dir=at / "weights",
                control_socket=fake.socket,
                log_dir=at / "logs",
                seed=1,
            )
        ) as child,
    ):
        with anyio.fail_after(100):
            if kill_at:
                await saved.wait()
                await child.kill()
            return await child.wait()


def trainer_of(model: Path, at: Path, stage: SftStage = STAGE) -> Any:
    """The stage's trainer in this process."""
    from forge.train.trainer.child.settings import TrainerSettings
    from forge.train.trainer.sft.rows import read_rows
    from forge.train.trainer.sft.trainer import make_trainer

    settings = TrainerSettings(
        stage=stage.model_dump(mode="json"),
        model=ModelTable(path=str(model)).model_dump(mode="json"),
        rollout=RolloutTable().model_dump(mode="json"),
        model_dir=model,
        rows_path=at / "rows.jsonl",
        work_dir=at / "undisturbed",
        weights_dir=at / "weights",
        control_socket=at / "none.sock",
        seed=1,
    )
    return make_trainer(settings, rows=read_rows(at / "rows.jsonl"))


def undisturbed(model: Path, at: Path) -> dict[str, torch.Tensor]:
    """The same stage trained in one go."""
    trainer = trainer_of(model, at)
    trainer.train()
    return trainer.model.state_dict()


@pytest.mark.filterwarnings("ignore")
def test_packing_makes_fewer_rows_and_loses_no_token(tiny_model: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl")
    rows = trainer_of(tiny_model, tmp_path).rows
    packed = trainer_of(tiny_model, tmp_path, STAGE.model_copy(update={"packing": True})).rows
    assert len(packed) < len(rows)
    assert sum(map(len, packed["input_ids"])) == sum(map(len, rows["input_ids"]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_killed_stage_resumes_and_ends_as_if_it_had_not_been(
    tiny_model: Path, supervisor: FakeSupervisor, served: Served, tmp_path: Path
) -> None:
    from transformers import Qwen3ForCausalLM

    write_rows(tmp_path / "rows.jsonl")
    reason = anyio.run(lambda: train(supervisor, served, model=tiny_model, at=tmp_path, kill_at=3))
    assert "killed" in reason
    assert not supervisor.published
    torn = tmp_path / "work" / ".staging" / "checkpoint-6"
    torn.mkdir(parents=True, exist_ok=True)
    last = find_last_checkpoint(tmp_path / "work")
    assert last is not None
    assert last.name in ("checkpoint-3", "checkpoint-6")

    reason = anyio.run(lambda: train(supervisor, served, model=tiny_model, at=tmp_path, kill_at=0))
    log = (tmp_path / "logs" / "trainer.log").read_text()
    assert reason == "exit 0", log[-3000:]
    assert f"from {last}" in log
    assert [c["step"] for c in supervisor.checkpoints][-1] == 9
    assert supervisor.progress[-1]["step"] == supervisor.progress[-1]["total"] == 9
    assert supervisor.progress[-1]["metrics"]["train/loss/mean"] < 5.5
    assert [p["step"] for p in supervisor.published] == [9]
    published = Qwen3ForCausalLM.from_pretrained(supervisor.published[0]["path"]).state_dict()
    for name, tensor in undisturbed(tiny_model, tmp_path).items():
        assert torch.equal(published[name], tensor), name


def test_batches_hold_rows_of_like_length_and_every_row_once_a_pass() -> None:
    from forge.train.trainer.sft.rows import BatchOrder

    draw = random.Random(0)
    lengths = [draw.randrange(10, 400) for _ in range(64)]
    order = list(BatchOrder(lengths, batch_size=8, num_batches=12, seed=3))
    assert sorted(order[:64]) == list(range(64))
    assert len(order) == 96
    spreads = [
        max(lengths[i] for i in order[k : k + 8]) - min(lengths[i] for i in order[k : k + 8])
        for k in range(0, 64, 8)
    ]
    assert sum(spreads) / len(spreads) < 100
    assert order == list(BatchOrder(lengths, batch_size=8, num_batches=12, seed=3))
    assert order != list(BatchOrder(lengths, batch_size=8, num_batches=12, seed=4))


@pytest.mark.filterwarnings("ignore")
def test_tokens_a_second_are_those_that_were_trained(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge.train.trainer.child.control import StepOrders, StopFlag
    from forge.train.trainer.sft import trainer as answers

    write_rows(tmp_path / "rows.jsonl")
    trainer = trainer_of(tiny_model, tmp_path)
    told: list[dict[str, float]] = []

    def progress(*, metrics: dict[str, float], **_: Any) -> StepOrders:
        told.append(metrics)
        return StepOrders()

    control: Any = SimpleNamespace(progress=progress)
    reporter = answers.Reporter(trainer, control=control, stop=StopFlag())
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(answers, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    logs = dict.fromkeys(("loss", "grad_norm", "learning_rate", "mean_token_accuracy"), 0.5)
    for trained, forwarded in ((300, 1000), (700, 3000)):
        trainer.num_trained = trained
        given = logs | {"num_tokens": forwarded}
        reporter.on_log(trainer.args, trainer.state, trainer.control, logs=given)
    assert "train/tokens/per_s" not in told[0]
    assert told[1]["train/tokens/per_s"] == (700 - 300) / 2.0


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_checkpoint_that_the_supervisor_wants_is_saved_at_the_end_of_that_step(
    tiny_model: Path, tmp_path: Path
) -> None:
    from forge.train.trainer.child.control import StepOrders, StopFlag
    from forge.train.trainer.sft import trainer as answers

    write_rows(tmp_path / "rows.jsonl")
    stage = STAGE.model_copy(update={"steps": 3, "save_every": 9})
    trainer = trainer_of(tiny_model, tmp_path, stage)
    saved: list[int] = []
    control: Any = SimpleNamespace(
        progress=lambda *, step, **_: StepOrders(save=step == 1),
        checkpoint=lambda *, step, path: saved.append(step),
    )
    trainer.add_callback(answers.Reporter(trainer, control=control, stop=StopFlag()))
    trainer.train()
    assert saved == [1, 3]
    last, first = (tmp_path / "undisturbed" / f"checkpoint-{step}" for step in (3, 1))
    assert find_last_checkpoint(tmp_path / "undisturbed") == last
    again = trainer_of(tiny_model, tmp_path, stage)
    again.train(resume_from_checkpoint=str(first))
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor), name
