"""Packed sequences that compute a shared prefix once give the loss and gradient of padded rows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forge.config.schema import GrpoStage, LoraTable, ModelTable
from forge.errors import ConfigError
from forge.records import Sample
from forge.runner.plan.memory import KEYS_PER_TOKEN as PLANNED_KEYS
from forge.train.trainer.packed import head
from forge.train.trainer.packed.sequences import KEYS_PER_TOKEN, RowLayout, Sequence, cut_batch
from tests.architectures import SIZES
from tests.train.samples import make_group
from tests.train.trained import settings_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

STAGE = GrpoStage(kind="grpo", steps=1, learning_rate=1e-3, packing=True)


def make_batch() -> list[Sample]:
    """Two groups, and one sample twice with different advantages."""
    found = make_group(seed=1) + make_group(seed=2, turns=3)
    return [*found, replace(found[0], advantage=-1.5, sample_id=99)]


def make_trainer(model_dir: Path, at: Path, *, lora: LoraTable | None = None, **keys: Any) -> Any:
    """A trainer of packed samples, which also takes padded ones. `keys` are the stage's."""
    from forge.train.trainer import grpo as stage

    client: Any = None
    table = ModelTable(path=str(model_dir), lora=lora)
    settings = settings_of(STAGE.model_copy(update=keys), model_dir, at, model=table)
    return stage.make_trainer(settings, client=client)


@pytest.fixture(scope="module")
def trainer(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_trainer(tiny_model, tmp_path_factory.mktemp("packed"))


def assert_same(trainer: Any, *, max_tokens: int) -> None:
    """The padded rows are scored by the chunked head, as on a GPU, the others by that of a CPU."""
    found = {}
    batch = trainer.sequences_of(make_batch(), version=0)
    for layout in RowLayout:
        budget = 200 if layout is RowLayout.PADDED else max_tokens
        cut = cut_batch(batch, max_tokens=budget, layout=layout)
        assert all(("packed_keys" in m.inputs) <= (layout is RowLayout.SHARED) for m in cut)
        trainer.stats.num_passes += 1
        trainer.model.zero_grad()
        with patch.object(head, "SMALL", 0 if layout is RowLayout.PADDED else head.SMALL):
            loss = trainer.training_step(trainer.model, cut).item()
        named = trainer.model.named_parameters()
        found[layout] = loss, {n: p.grad.clone() for n, p in named if p.requires_grad}
    want, gradients = found[RowLayout.PADDED]
    assert any(gradient.abs().max() > 1e-4 for gradient in gradients.values())
    for loss, theirs in found.values():
        assert loss == pytest.approx(want, abs=1e-6)
        for name, gradient in gradients.items():
            torch.testing.assert_close(theirs[name], gradient, atol=2e-6, rtol=1e-3, msg=name)


@pytest.mark.parametrize("kind", ["dapo", "bnpo", "dr_grpo", "grpo"])
@pytest.mark.parametrize("max_tokens", [60, 10_000])
def test_loss_and_gradient_are_those_of_padded_rows(
    trainer: Any, kind: str, max_tokens: int
) -> None:
    trainer.loss_type = kind
    assert_same(trainer, max_tokens=max_tokens)


def test_a_token_has_the_same_scores_from_the_chunked_head_and_from_all_logits(
    trainer: Any,
) -> None:
    batch = trainer.sequences_of(make_batch(), version=0)
    for m in cut_batch(batch, max_tokens=200, layout=RowLayout.PADDED):
        got = head.score(trainer.model, m)
        with patch.object(head, "SMALL", 0):
            want = head.score(trainer.model, m)
        scores = [(one.logps, one.entropy, one.is_top) for one in (got, want)]
        torch.testing.assert_close(*scores)


@pytest.mark.parametrize(
    "keys",
    [{"gradient_checkpointing": True}, {"gradient_checkpointing": 1}, {"lora": LoraTable(r=4)},
     {"beta": 0.2}, {"beta": 0.2, "lora": LoraTable(r=4), "gradient_checkpointing": True}],
    ids=["recomputed", "one block", "adapter", "reference", "reference of an adapter"],
)  # fmt: skip
def test_options_of_a_stage_give_the_same_gradients_in_every_layout(
    tiny_model: Path, tmp_path: Path, keys: dict[str, Any]
) -> None:
    trainer = make_trainer(tiny_model, tmp_path, **keys)
    torch.manual_seed(0)  # away from the reference, and from an adapter of zeros
    for p in trainer.model.parameters():
        if p.requires_grad:
            p.data.add_(torch.randn_like(p), alpha=0.05)
    assert_same(trainer, max_tokens=60)
    blocks = trainer.policy.get_submodule("model.layers" if "lora" not in keys else
                                          "base_model.model.model.layers")  # fmt: skip
    recomputed = [block.gradient_checkpointing for block in blocks]
    assert recomputed == [n < 2 * keys.get("gradient_checkpointing", 0) for n in range(2)] or (
        recomputed == [True, False]
    )
    kl = trainer.stats.metrics(trainer.world).get("train/kl_reference/mean", 0.0)
    assert (kl > 1e-4) is ("beta" in keys)


@pytest.mark.parametrize("is_continued", [False, True])
def test_an_adapter_drops_nothing_in_grpo(
    tiny_model: Path, tmp_path: Path, is_continued: bool
) -> None:
    from forge.train.trainer import grpo as stage

    lora, at = LoraTable(r=4, dropout=0.5), tmp_path / "adapter"
    trainer: Any = make_trainer(tiny_model, tmp_path, lora=lora)
    if is_continued:
        trainer.policy.save_pretrained(at)
        assert json.loads((at / "adapter_config.json").read_text())["lora_dropout"] == 0.5
        table = ModelTable(path=str(tiny_model))
        kl = STAGE.model_copy(update={"beta": 0.1})
        settings = settings_of(kl, tiny_model, tmp_path, model=table, adapter=at)
        client: Any = None
        trainer = stage.make_trainer(settings, client=client)
    policy: Any = trainer.model
    for name, p in policy.named_parameters():
        if "lora_B" in name:
            p.data.fill_(0.05)
    batch = trainer.sequences_of(make_batch(), version=0)
    policy.train()
    for adapter in ("default", "ref") if is_continued else ("default",):
        policy.set_adapter(adapter)
        for m in cut_batch(batch, max_tokens=10_000, layout=RowLayout.SHARED):
            first, second = (head.score(policy, m).logps for _ in range(2))
            assert torch.equal(first, second)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("recurrent_gemma", "its log-probability is"),
        ("bert", "its log-probability is"),
        ("electra", "its output layer failed"),
        ("llama4_text", "it has no language_model"),
        ("opt", ""),
        ("granite", ""),
        ("gemma2", ""),
    ],
)
def test_a_model_whose_logits_are_not_its_output_layers_is_refused(kind: str, why: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    keys: dict[str, Any] = {key: value for key, value in SIZES.items() if key != "head_dim"}
    config = AutoConfig.for_model(kind, **keys, is_decoder=True)
    model = AutoModelForCausalLM.from_config(config).eval()
    if not why:
        head.add_head(model, temperature=0.7)
        return
    with pytest.raises(ConfigError, match=rf"model\.path: found \w+, .* trained: {why}"):
        head.add_head(model, temperature=0.7)


class _Doubled(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def test_an_output_layer_that_does_more_than_its_product_is_refused() -> None:
    """Its larger micro-batches would be scored by its weights alone, on a CPU too."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES)).eval()
    rows, columns = model.lm_head.weight.shape
    model.lm_head = _Doubled(columns, rows, bias=False)
    with pytest.raises(ConfigError, match="its log-probability is"):
        head.add_head(model)


def test_scores_without_gradients_are_log_probabilities_alone(trainer: Any) -> None:
    batch = trainer.sequences_of(make_batch(), version=0)
    [m] = cut_batch(batch, max_tokens=10_000, layout=RowLayout.SHARED)
    with torch.no_grad():
        found = head.score(trainer.model, m)
    assert (found.entropy, found.is_top) == (None, None)
    torch.testing.assert_close(found.logps, head.score(trainer.model, m).logps.detach())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recomputed", [0, 1, True])
def test_compiled_blocks_have_the_same_gradients(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recomputed: int
) -> None:
    from torch._dynamo.utils import counters

    from forge.train.trainer.model import load

    monkeypatch.setattr(load, "BACKEND", "eager")  # traces alike, in seconds
    keys = {"compile": True, "gradient_checkpointing": recomputed or False}
    torch._dynamo.reset()
    counters.clear()
    assert_same(make_trainer(tiny_model, tmp_path, **keys), max_tokens=60)
    assert counters["stats"]["unique_graphs"] > 0


@pytest.mark.parametrize("window", [None, 6])
def test_hidden_states_are_those_of_each_sequence_alone_in_double_precision(
    tiny_model: Path, tmp_path: Path, window: int | None
) -> None:
    trainer = make_trainer(tiny_model, tmp_path)
    layers = trainer.model.double().base_model
    for layer in layers.layers:
        layer.self_attn.sliding_window = window
    samples = make_batch()
    batch = trainer.sequences_of(samples, version=0)
    with torch.no_grad():
        wanted = {
            tuple(each.ids): layers(torch.from_numpy(each.ids)[None]).last_hidden_state[0]
            for each in batch
        }
        for layout in (RowLayout.PACKED, RowLayout.SHARED):
            for m in cut_batch(batch, max_tokens=60, layout=layout):
                inputs = {k: v for k, v in m.inputs.items() if k not in ("scored", "targets")}
                hidden = layers(**inputs).last_hidden_state[0]
                keys = m.inputs.get("packed_keys", torch.arange(len(hidden)))
                ends = m.inputs["packed_ends_k"].tolist()
                for each, start, end in zip(m.sequences, ends, ends[1:], strict=False):
                    torch.testing.assert_close(
                        hidden[keys[start:end]], wanted[tuple(each.ids)], atol=1e-12, rtol=1e-10
                    )


tokens = st.lists(st.integers(5, 7), min_size=1, max_size=5).map(tuple)


@given(pairs=st.lists(st.tuples(tokens, tokens), min_size=1, max_size=8),
       max_tokens=st.integers(1, 40), num_ranks=st.integers(1, 3),
       layout=st.sampled_from(RowLayout))  # fmt: skip
def test_a_micro_batch_holds_sequences_whole_and_predicts_each_token_at_its_position(
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]], max_tokens: int, num_ranks: int,
    layout: RowLayout,
) -> None:  # fmt: skip
    batch = [
        sequence([*prompt, *answer], trained=len(answer), weight=float(number + 1))
        for number, (prompt, answer) in enumerate(pairs)
    ]
    cut = [
        m
        for rank in range(num_ranks)
        for m in cut_batch(
            batch, max_tokens=max_tokens, layout=layout, rank=rank, num_ranks=num_ranks
        )
    ]
    kept = [m for m in cut if not m.is_filler]
    assert sorted(s.values["weight"] for m in kept for s in m.sequences) == [
        float(number + 1) for number in range(len(batch))
    ]
    for m in cut:
        is_alone = len(m.sequences) == 1
        assert m.num_forwarded <= max_tokens or is_alone
        ids, places = m.inputs["input_ids"].flatten().numpy(), m.inputs.get("position_ids")
        scored, targets = m.inputs["scored"].tolist(), m.inputs["targets"].tolist()
        assert targets == [t for s in m.sequences for t in s.ids[s.trained].tolist()]
        weights = [0.0 if m.is_filler else s.values["weight"] for s in m.sequences
                   for _ in s.trained]  # fmt: skip
        assert m.values["weight"].tolist() == weights
        if places is None:
            continue
        keys = m.inputs.get("packed_keys", torch.arange(len(ids))).numpy()
        assert len(keys) <= KEYS_PER_TOKEN * max_tokens or is_alone
        ends, predicts = m.inputs["packed_ends_k"].tolist(), iter(scored)
        for number, each in enumerate(m.sequences):
            path = keys[ends[number] : ends[number + 1]]
            assert ids[path].tolist() == each.ids.tolist()
            assert places[0].numpy()[path].tolist() == list(range(each.size))
            assert np.all(np.diff(path) > 0), "keys are in order"
            assert [next(predicts) for _ in each.trained] == path[each.trained - 1].tolist()


def sequence(ids: list[int], *, trained: int, weight: float = 1.0) -> Sequence:
    places = np.arange(max(len(ids) - trained, 1), len(ids))
    return Sequence(ids=np.array(ids), trained=places, values={"weight": weight})


def test_the_plan_counts_as_many_keys_as_a_row_may_have() -> None:
    assert PLANNED_KEYS == KEYS_PER_TOKEN


def of_samples(samples: list[Sample]) -> list[Sequence]:
    return [
        sequence([*s.prompt_ids, *s.completion_ids], trained=len(s.completion_ids)) for s in samples
    ]


def test_a_multi_turn_batch_forwards_far_fewer_tokens() -> None:
    batch = of_samples(make_group(seed=3, siblings=8, turns=3))
    (m,) = cut_batch(batch, max_tokens=10_000, layout=RowLayout.SHARED)
    assert m.num_forwarded < m.num_tokens / 2


def test_micro_batches_of_several_ranks_are_even() -> None:
    batch = of_samples([s for seed in range(8) for s in make_group(seed=seed, siblings=6)])
    (whole,) = cut_batch(batch, max_tokens=10**6, layout=RowLayout.SHARED)
    budget = int(0.7 * whole.num_forwarded)
    (first,), (second,) = (
        cut_batch(batch, max_tokens=budget, layout=RowLayout.SHARED, rank=rank, num_ranks=2)
        for rank in range(2)
    )
    assert first.num_forwarded == pytest.approx(second.num_forwarded, rel=0.15)
