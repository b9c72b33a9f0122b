"""A trainer on a card that judges time kernels on: its work and their timing never overlap."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import GrpoStage, SftStage
from forge.errors import Stalled
from forge.process.gpu_lease import GpuLease
from forge.train.trainer.child import card
from tests.train.test_ranks import make_samples

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

CARD = "GPU-1234"


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuLease:
    """The other side of the same lock."""
    monkeypatch.setattr(card, "GpuLease", partial(GpuLease, folder=tmp_path))
    return GpuLease(CARD, folder=tmp_path)


def is_free(judge: GpuLease) -> bool:
    try:
        with judge.exclusive(timeout_s=0.02):
            return True
    except Stalled:
        return False


def test_a_judge_waits_while_the_card_is_taken_and_no_longer(judge: GpuLease) -> None:
    held = card.SharedCard(CARD)
    assert is_free(judge)
    held.take()
    held.take()
    assert not is_free(judge)
    held.give()
    assert is_free(judge)
    with held.taken():
        assert not is_free(judge)
    assert is_free(judge)


def test_a_card_of_its_own_is_not_locked(judge: GpuLease) -> None:
    with card.SharedCard(None).taken():
        assert is_free(judge)


@pytest.mark.parametrize("kind", ["grpo", "sft"])
def test_every_micro_batch_holds_the_card_and_the_step_ends_with_it_free(
    tiny_model: Path, tmp_path: Path, judge: GpuLease, kind: str
) -> None:
    from tests.train.test_oom import settings_of

    free_in_forward: list[bool] = []
    stage = (
        GrpoStage(kind="grpo", steps=1, learning_rate=1e-3, micro_batch_tokens=60)
        if kind == "grpo"
        else SftStage(kind="sft", steps=1, learning_rate=1e-3, batch_size=4, micro_batch_tokens=60)
    )
    settings = settings_of(stage, tiny_model, tmp_path, shared_card=CARD)
    trainer = grpo(settings, tmp_path) if kind == "grpo" else sft(settings)
    trainer.model.register_forward_pre_hook(
        lambda *args, **kwargs: free_in_forward.append(is_free(judge)), with_kwargs=True
    )
    trainer.train()
    assert len(free_in_forward) > 1
    assert not any(free_in_forward)
    assert is_free(judge)


def grpo(settings: Any, at: Path) -> Any:
    from forge.train.trainer.child.control import StopFlag
    from forge.train.trainer.grpo.stage import Reporter, make_trainer
    from tests.train.test_moe_step import Supervisor

    server: Any = Supervisor(at)
    trainer = make_trainer(settings, control=server)
    trainer.add_callback(Reporter(trainer, stop=StopFlag()))
    return trainer


def sft(settings: Any) -> Any:
    from types import SimpleNamespace

    from datasets import Dataset

    from forge.train.trainer.child.control import StopFlag
    from forge.train.trainer.sft.trainer import Reporter, make_trainer

    ids = [[*s.prompt_ids, *s.completion_ids] for s in make_samples(4, seed=1)]
    rows = Dataset.from_dict({"input_ids": ids, "labels": ids})
    wishes = SimpleNamespace(save=False, evaluate=False)
    silent: Any = SimpleNamespace(progress=lambda **body: wishes, checkpoint=lambda **body: None)
    trainer = make_trainer(settings, rows=rows)
    trainer.add_callback(Reporter(trainer, control=silent, stop=StopFlag()))
    return trainer
