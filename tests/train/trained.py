"""Trainers as the tests start them: the settings of one in this process, the job of a child, a
supervisor in this process, and the weights that are published."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forge.config.schema import GrpoStage, ModelTable, RolloutTable, SftStage
from forge.train.batch import write_batch
from forge.train.checkpoints import find_resume_point
from forge.train.handle import TrainerJob
from tests.train.conftest import FakeSupervisor
from tests.train.samples import make_samples


def settings_of(
    stage: GrpoStage | SftStage,
    model_dir: Path,
    at: Path,
    *,
    model: ModelTable | None = None,
    rollout: RolloutTable | None = None,
    **changes: Any,
) -> Any:
    from forge.train.trainer.child.settings import TrainerSettings

    table = ModelTable(path=str(model_dir)) if model is None else model
    keys: dict[str, Any] = {
        "stage": stage.model_dump(mode="json"),
        "model": table.model_dump(mode="json"),
        "rollout": (rollout or RolloutTable()).model_dump(mode="json"),
        "model_dir": model_dir,
        "rows_path": None,
        "work_dir": at / "work",
        "weights_dir": at / "weights",
        "control_socket": at / "none.sock",
        "seed": 0,
    }
    return TrainerSettings(**keys | changes)


def job_of(
    stage: GrpoStage | SftStage,
    fake: FakeSupervisor,
    *,
    model_dir: Path,
    at: Path,
    model: ModelTable | None = None,
    **keys: Any,
) -> TrainerJob:
    """The job of a trainer child that continues its last checkpoint, with its files in `at`."""
    return TrainerJob(
        stage=stage,
        model=ModelTable(path=str(model_dir)) if model is None else model,
        model_dir=model_dir,
        rows_path=at / "rows.jsonl" if stage.kind == "sft" else None,
        work_dir=at / "work",
        checkpoint=find_resume_point(at / "work").path,
        weights_dir=at / "weights",
        control_socket=fake.socket,
        log_dir=at / "logs",
        seed=1,
        **keys,
    )


class OneBatch:
    """A supervisor in this process: gives one batch and keeps what is published and reported."""

    def __init__(self, at: Path) -> None:
        self.path = at / "batch.npz"
        write_batch(self.path, make_samples(6, seed=3))
        self.published: list[dict[str, Any]] = []
        self.metrics: dict[str, float] = {}

    def take(self, *, step: int) -> Any:
        if step:
            return None
        return SimpleNamespace(step=1, samples_path=self.path, wait_s=0.0)

    def publish(self, **body: Any) -> int:
        self.published.append(body)
        return len(self.published)

    def trained(self, *, step: int, metrics: dict[str, float]) -> Any:
        self.metrics = metrics
        return SimpleNamespace(save=False, evaluate=False)

    def checkpoint(self, **body: Any) -> None:
        pass


def grpo_trainer(settings: Any, client: Any) -> Any:
    from forge.train.trainer.child.control import StopFlag
    from forge.train.trainer.grpo import GrpoReporter, make_trainer

    trainer = make_trainer(settings, client=client)
    trainer.add_callback(GrpoReporter(trainer, client=trainer.client, stop=StopFlag()))
    return trainer


def train_grpo(settings: Any, client: Any) -> Any:
    trainer = grpo_trainer(settings, client)
    trainer.train()
    trainer.publisher.wait()
    return trainer


def weights_of(published: dict[str, Any]) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(Path(published["path"], "model.safetensors"))
