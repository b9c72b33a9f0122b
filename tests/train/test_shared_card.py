"""A trainer that shares a GPU with judges: its work and their timing never overlap."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forge.config.schema import GrpoStage, SftStage
from forge.errors import Stalled
from forge.process.gpu_locks import GpuLease
from forge.train.trainer.child import parallel
from tests.train.samples import make_samples
from tests.train.trained import OneBatch, grpo_trainer, settings_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

CARD = "GPU-1234"


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuLease:
    """The other side of the same lock."""
    monkeypatch.setattr(parallel, "GpuLease", partial(GpuLease, folder=tmp_path))
    return GpuLease(CARD, folder=tmp_path)


def is_free(judge: GpuLease) -> bool:
    try:
        with judge.exclusive(timeout_s=0.02):
            return True
    except Stalled:
        return False


def test_a_judge_waits_only_while_the_card_is_held(judge: GpuLease) -> None:
    held = parallel.SharedCard(CARD)
    assert is_free(judge)
    held.take()
    held.take()
    assert not is_free(judge)
    held.give()
    assert is_free(judge)
    with held.taken():
        assert not is_free(judge)
    assert is_free(judge)


def test_a_card_that_is_not_shared_is_not_locked(judge: GpuLease) -> None:
    with parallel.SharedCard(None).taken():
        assert is_free(judge)


@pytest.mark.parametrize("kind", ["grpo", "sft"])
def test_every_micro_batch_holds_the_card_and_the_step_ends_with_it_free(
    tiny_model: Path, tmp_path: Path, judge: GpuLease, kind: str
) -> None:
    free_in_forward: list[bool] = []
    stage = (
        GrpoStage(kind="grpo", steps=1, learning_rate=1e-3, micro_batch_tokens=60)
        if kind == "grpo"
        else SftStage(kind="sft", steps=1, learning_rate=1e-3, batch_size=4, micro_batch_tokens=60)
    )
    settings = settings_of(stage, tiny_model, tmp_path, shared_card=CARD)
    client = OneBatch(tmp_path)
    trainer = grpo_trainer(settings, client) if kind == "grpo" else sft_trainer(settings)
    trainer.model.register_forward_pre_hook(
        lambda *args, **kwargs: free_in_forward.append(is_free(judge)), with_kwargs=True
    )
    trainer.train()
    assert len(free_in_forward) > 1
    assert not any(free_in_forward)
    assert is_free(judge)


def sft_trainer(settings: Any) -> Any:
    from forge.train.trainer.child.control import StepOrders, StopFlag
    from forge.train.trainer.sft import SftReporter, TokenRow, make_trainer

    ids = [np.array([*s.prompt_ids, *s.completion_ids]) for s in make_samples(4, seed=1)]
    rows = [TokenRow(ids=each, trained=np.arange(1, len(each))) for each in ids]
    client: Any = SimpleNamespace(
        progress=lambda **body: StepOrders(), checkpoint=lambda **body: None
    )
    trainer = make_trainer(settings, rows=rows)
    trainer.add_callback(SftReporter(trainer, client=client, stop=StopFlag()))
    return trainer
