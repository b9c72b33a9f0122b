"""Samples that share prefixes give the same loss and gradient as padded samples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forge.config.schema import GrpoStage, LoraTable, ModelTable
from forge.runner.plan.gpu_costs import KEYS_PER_TOKEN as PLANNED_KEYS
from forge.train.refusals import refusals
from forge.train.trainer.grpo.microbatches import (
    KEYS_PER_TOKEN,
    cut_batch,
    num_tokens,
    pack,
    rows_by_prefix,
)
from tests.train.samples import make_group
from tests.train.trained import settings_of

if TYPE_CHECKING:
    from forge.records import Sample

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

STAGE = GrpoStage(kind="grpo", steps=1, learning_rate=1e-3)


def make_batch() -> list[Sample]:
    """Two groups, and one sample twice with different advantages."""
    found = make_group(seed=1) + make_group(seed=2, turns=3)
    return [*found, replace(found[0], advantage=-1.5, sample_id=99)]


def make_pair(
    model_dir: Path, at: Path, *, lora: LoraTable | None = None, **keys: Any
) -> dict[bool, Any]:
    """By `share_prefixes`: a trainer with it and one without. `keys` are the stage's."""
    from forge.train.trainer.grpo.stage import make_trainer

    client: Any = None
    table = ModelTable(path=str(model_dir), lora=lora)
    stages = {
        shares: STAGE.model_copy(update={"share_prefixes": shares, **keys})
        for shares in (False, True)
    }
    return {
        shares: make_trainer(settings_of(stage, model_dir, at, model=table), client=client)
        for shares, stage in stages.items()
    }


@pytest.fixture(scope="module")
def trainers(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Any]:
    return make_pair(tiny_model, tmp_path_factory.mktemp("prefixes"))


def loss_of(trainer: Any, samples: list[Sample], *, shares: bool, max_tokens: int) -> float:
    """Loss of a whole batch; leaves its gradient."""
    trainer.current_gradient_accumulation_steps = 1
    cut = cut_batch(samples, max_tokens=max_tokens, shares_prefixes=shares)
    assert all((m.row is not None) == shares for m in cut)
    trainer.stats.num_passes += 1
    trainer.model.zero_grad()
    return trainer.training_step(trainer.model, {"micro_batches": cut}).item()


@pytest.mark.parametrize("kind", ["dapo", "bnpo", "dr_grpo", "grpo"])
@pytest.mark.parametrize("max_tokens", [60, 10_000])
def test_loss_and_gradient_are_those_of_padded_rows(
    trainers: dict[bool, Any], kind: str, max_tokens: int
) -> None:
    for trainer in trainers.values():
        trainer.loss_type = kind
    assert_same(trainers, max_tokens=max_tokens)


def assert_same(trainers: dict[bool, Any], *, max_tokens: int) -> None:
    """Loss and gradients of both trainers agree."""
    samples = make_batch()
    alone, shared = trainers[False], trainers[True]
    want = loss_of(alone, samples, shares=False, max_tokens=200)
    got = loss_of(shared, samples, shares=True, max_tokens=max_tokens)
    assert got == pytest.approx(want, abs=1e-5)
    pairs = zip(alone.model.named_parameters(), shared.model.parameters(), strict=True)
    moved = [(name, p.grad, q.grad) for (name, p), q in pairs if p.requires_grad]
    assert any(gradient.abs().max() > 1e-4 for _, gradient, _ in moved)
    for name, p, q in moved:
        torch.testing.assert_close(q, p, atol=2e-6, rtol=1e-3, msg=name)


@pytest.mark.parametrize(
    "keys",
    [{"gradient_checkpointing": True}, {"lora": LoraTable(r=4)}, {"beta": 0.2},
     {"beta": 0.2, "lora": LoraTable(r=4)}],
    ids=["recomputed", "adapter", "reference", "reference of an adapter"],
)  # fmt: skip
def test_options_of_a_stage_give_the_same_gradients_with_shared_prefixes(
    tiny_model: Path, tmp_path: Path, keys: dict[str, Any]
) -> None:
    pair = make_pair(tiny_model, tmp_path, **keys)
    for trainer in pair.values():
        torch.manual_seed(0)  # away from the reference, and from an adapter of zeros
        for p in trainer.model.parameters():
            if p.requires_grad:
                p.data.add_(torch.randn_like(p), alpha=0.05)
    assert_same(pair, max_tokens=60)
    name = "train/kl_reference/mean"
    alone, shared = (trainer.stats.metrics(trainer.world) for trainer in pair.values())
    assert (name in alone) is (name in shared) is ("beta" in keys)
    if "beta" in keys:
        assert alone[name] > 1e-4
        assert shared[name] == pytest.approx(alone[name], rel=1e-3)


def test_scores_without_a_row_do_not_change(
    trainers: dict[bool, Any],
) -> None:
    from forge.train.trainer.publish.probes import score

    prompt, answer = list(range(5, 30)), list(range(40, 60))
    want = score(trainers[False].policy, prompt, answer)
    assert score(trainers[True].policy, prompt, answer) == pytest.approx(want, abs=1e-5)


tokens = st.lists(st.integers(5, 7), min_size=1, max_size=5).map(tuple)


@given(pairs=st.lists(st.tuples(tokens, tokens), min_size=1, max_size=8),
       max_tokens=st.integers(1, 40), num_ranks=st.integers(1, 3))  # fmt: skip
def test_a_row_holds_every_sample_whole_and_predicts_each_token_at_its_position(
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]], max_tokens: int, num_ranks: int
) -> None:
    samples = [
        replace(make_group(seed=0)[0], sample_id=i, prompt_ids=p, completion_ids=c,
                logprobs=(0.0,) * len(c))
        for i, (p, c) in enumerate(pairs)
    ]  # fmt: skip
    rows = rows_by_prefix(samples, max_tokens=max_tokens, num_ranks=num_ranks)
    assert sorted(s.sample_id for row in rows for s in row) == list(range(len(samples)))
    for members in rows:
        row = pack(members)
        assert row.num_forwarded <= max_tokens or len(members) == 1
        num_keys = len(row.inputs["prefix_keys"])
        assert num_keys <= KEYS_PER_TOKEN * max_tokens or len(members) == 1
        ids, places, labels = (
            row.inputs[name][0].numpy() for name in ("input_ids", "position_ids", "shift_labels")
        )
        ends, keys = row.inputs["prefix_ends_k"].tolist(), row.inputs["prefix_keys"].numpy()
        predicted = iter(row.token_index.tolist())
        for number, sample in enumerate(members):
            path = keys[ends[number] : ends[number + 1]]
            whole = [*sample.prompt_ids, *sample.completion_ids]
            assert ids[path].tolist() == whole
            assert places[path].tolist() == list(range(len(whole)))
            assert np.all(np.diff(path) > 0), "keys are in order"
            for place, token in enumerate(sample.completion_ids, len(sample.prompt_ids)):
                position = next(predicted)
                assert position == path[place - 1]
                assert labels[position] == token


def test_the_plan_counts_as_many_keys_as_a_row_may_have() -> None:
    assert PLANNED_KEYS == KEYS_PER_TOKEN


def test_a_multi_turn_batch_forwards_far_fewer_tokens() -> None:
    samples = make_group(seed=3, siblings=8, turns=3)
    (row,) = rows_by_prefix(samples, max_tokens=10_000)
    alone = sum(len(s.prompt_ids) + len(s.completion_ids) for s in samples)
    assert pack(row).num_forwarded < alone / 2


def test_the_keys_of_short_answers_to_a_long_prompt_are_bounded() -> None:
    (sample,) = make_group(seed=0, siblings=1, turns=1)
    prompt = tuple(range(5, 205))
    samples = [replace(sample, prompt_ids=prompt, completion_ids=(i,)) for i in range(5, 105)]
    rows = rows_by_prefix(samples, max_tokens=500)
    assert {len(row) for row in rows[:-1]} == {KEYS_PER_TOKEN * 500 // 201}


def test_samples_with_nothing_in_common_are_laid_end_to_end() -> None:
    samples = [make_group(seed=seed, siblings=1, turns=1)[0] for seed in range(6)]
    (row,) = rows_by_prefix(samples, max_tokens=10_000)
    assert pack(row).num_forwarded == sum(map(num_tokens, samples))


def test_rows_of_several_ranks_are_even() -> None:
    samples = [each for seed in range(8) for each in make_group(seed=seed, siblings=6)]
    whole = sum(pack(row).num_forwarded for row in rows_by_prefix(samples, max_tokens=10**6))
    shares = [
        cut_batch(
            samples, max_tokens=int(0.7 * whole), rank=rank, num_ranks=2, shares_prefixes=True
        )
        for rank in range(2)
    ]
    (first,), (second,) = shares
    assert first.num_forwarded == pytest.approx(second.num_forwarded, rel=0.15)


@pytest.mark.parametrize(
    ("is_refused", "config"),
    [
        (True, {"layer_types": ["sliding_attention"]}),
        (True, {"model_type": "mistral", "sliding_window": 4096}),
        (True, {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True}),
        (True, {"model_type": "gemma3", "text_config": {"sliding_window_pattern": 6}}),
        (True, {"model_type": "llama4_text", "attention_chunk_size": 8192}),
        (False, {}),
        (False, {"model_type": "mistral", "sliding_window": None}),
        (False, {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}),
        (False, {"layer_types": ["full_attention"], "sliding_window": 4096}),
    ],
)
def test_models_with_windowed_attention_are_refused(
    tmp_path: Path, config: dict[str, Any], is_refused: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    stage = STAGE.model_copy(update={"share_prefixes": True})
    table = ModelTable(path=str(tmp_path))
    lines = refusals(stage, model=table, model_dir=tmp_path, num_gpus=1)
    assert [line.partition(": ")[0] for line in lines] == ["share_prefixes"] * is_refused
    assert refusals(STAGE, model=table, model_dir=tmp_path, num_gpus=1) == []
