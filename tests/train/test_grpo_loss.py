"""The loss equals the papers' formula, however the batch is cut."""

import math
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from forge.config.schema import GrpoStage, RolloutTable
from forge.records import Sample
from tests.train.samples import make_samples
from tests.train.trained import settings_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

TEMPERATURE, MAX_TOKENS = 0.8, 30
CLIP_LOW, CLIP_HIGH = 0.2, 0.28


def some_samples(num: int) -> list[Sample]:
    """Samples far enough from the policy that some ratios are clipped on each side. Of each third
    one, a tool wrote the tokens in the middle."""
    found = make_samples(num, seed=0, spread=0.4)
    for number in range(1, num, 3):
        logprobs = list(found[number].logprobs)
        middle = slice(len(logprobs) // 3, 2 * len(logprobs) // 3)
        logprobs[middle] = [math.nan] * len(logprobs[middle])
        found[number] = replace(found[number], logprobs=tuple(logprobs))
    return found


def plain_loss(
    model: Any,
    samples: list[Sample],
    kind: str,
    *,
    importance_sampling_level: str = "token",
    delta: float | None = None,
    off_policy_mask_threshold: float | None = None,
    logprob_gap_limit: float | None = None,
) -> torch.Tensor:
    """The clipped loss, one sample at a time, as the papers write it (PPO: arXiv 1707.06347; GRPO:
    2402.03300; Dr. GRPO: 2503.20783; DAPO: 2503.14476; GSPO: 2507.18071; CISPO: 2506.13585)."""
    per_sample = []
    for s in samples:
        ids = torch.tensor([[*s.prompt_ids, *s.completion_ids]])
        logits = model(input_ids=ids).logits[0, len(s.prompt_ids) - 1 : -1] / TEMPERATURE
        logps = logits.log_softmax(-1).gather(-1, torch.tensor(s.completion_ids)[:, None])[:, 0]
        played = torch.tensor(s.logprobs)
        logps, played = logps[~played.isnan()], played[~played.isnan()]
        log_ratio = logps - played
        is_far = log_ratio.mean().item() < -(off_policy_mask_threshold or math.inf)
        is_apart = log_ratio.abs().mean().item() > (logprob_gap_limit or math.inf)
        if importance_sampling_level == "sequence":
            log_ratio = log_ratio.mean().expand(len(logps))
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
        bounded = ratio.clamp(max=delta or math.inf)
        one = -torch.min(bounded * s.advantage, clipped * s.advantage)
        if kind == "cispo":
            one = -ratio.detach().clamp(max=1 + CLIP_HIGH) * s.advantage * logps
        per_sample.append(one * (not (is_apart or (is_far and s.advantage < 0))))
    if kind == "grpo":
        return torch.stack([x.mean() for x in per_sample]).mean()
    if kind == "dr_grpo":
        return torch.stack([x.sum() for x in per_sample]).sum() / (len(samples) * MAX_TOKENS)
    return torch.cat(per_sample).mean()


def trainer_of(model_dir: Path, at: Path, **stage: Any) -> Any:
    from forge.train.trainer.grpo import make_trainer

    table = GrpoStage(
        kind="grpo", steps=1, learning_rate=1e-3, clip_low=CLIP_LOW, clip_high=CLIP_HIGH, **stage
    )
    rollout = RolloutTable(temperature=TEMPERATURE, max_completion_tokens=MAX_TOKENS)
    client: Any = None
    return make_trainer(settings_of(table, model_dir, at, rollout=rollout), client=client)


@pytest.fixture(scope="module")
def trainer(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Made once, since that takes seconds; each test sets its own loss."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trainer_of(tiny_model, tmp_path_factory.mktemp("trainer"), beta=0.5)


def loss_of(trainer: Any, samples: list[Sample], *, max_tokens: int) -> float:
    """Loss of a whole batch; leaves its gradient."""
    from forge.train.trainer.packed.sequences import RowLayout, cut_batch

    batch = trainer.sequences_of(samples, version=0)
    cut = cut_batch(batch, max_tokens=max_tokens, layout=RowLayout.PADDED)
    trainer.stats.num_passes += 1
    trainer.model.zero_grad()
    return trainer.training_step(trainer.model, cut).item()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("dapo", {}), ("bnpo", {}), ("dr_grpo", {}), ("grpo", {}), ("cispo", {}),
        ("dapo", {"importance_sampling_level": "sequence"}),
        ("cispo", {"importance_sampling_level": "sequence"}),
        ("dapo", {"delta": 1.4}),
        ("grpo", {"off_policy_mask_threshold": 0.05}),
        ("dapo", {"logprob_gap_limit": 0.31}),
    ],
)  # fmt: skip
def test_loss_and_gradient_equal_the_formula_however_the_batch_is_cut(
    trainer: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: Any
) -> None:
    from transformers import Qwen3ForCausalLM

    samples = some_samples(9)
    plain = Qwen3ForCausalLM.from_pretrained(tiny_model)
    want = plain_loss(plain, samples, kind, **options)
    if options:
        assert plain_loss(plain, samples, kind).item() != pytest.approx(want.item(), rel=1e-4)
    want.backward()
    trainer.loss_type, trainer.beta = kind, 0.0
    for key, value in options.items():
        monkeypatch.setitem(trainer.settings.stage, key, value)
    for max_tokens in (10, 90, 10_000):
        got = loss_of(trainer, samples, max_tokens=max_tokens)
        assert got == pytest.approx(want.item(), abs=1e-6)
        for (name, p), q in zip(trainer.model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, atol=1e-6, rtol=1e-4, msg=name)
    assert trainer.stats._sums["clipped"] > 0
    left_out = trainer.stats._sums["left_out"].item()
    assert (left_out > 0) == bool({"off_policy_mask_threshold", "logprob_gap_limit"} & {*options})


@pytest.mark.parametrize(
    ("kind", "delta", "want"), [("dapo", None, 2), ("dapo", 1.4, 3), ("cispo", None, 2)]
)
def test_tokens_whose_ratio_the_loss_bounds_are_counted(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, kind: str, delta: float | None, want: int
) -> None:
    (cut,) = trainer.cut(trainer.sequences_of(some_samples(1), version=0))
    num = cut.num_trained
    ratio, advantage = torch.ones(num), torch.ones(num)
    ratio[:3] = torch.tensor([1.5, 1.5, 0.5])
    advantage[1:3] = -1.0
    cut.values.update(played=torch.zeros(num), advantage=advantage)
    scores: Any = SimpleNamespace(logps=ratio.log(), entropy=torch.zeros(num))
    trainer.loss_type, trainer.beta = kind, 0.0
    monkeypatch.setitem(trainer.settings.stage, "delta", delta)
    monkeypatch.setattr(trainer.stats, "_sums", {})
    trainer.loss_of(cut, scores)
    assert trainer.stats._sums["clipped"] == want


def test_the_reference_adds_its_penalty(trainer: Any) -> None:
    samples = some_samples(4)
    trainer.loss_type, trainer.beta = "dapo", 0.5
    same = loss_of(trainer, samples, max_tokens=100)
    with torch.no_grad():
        for p in trainer.reference.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) * 0.05)
    assert loss_of(trainer, samples, max_tokens=100) > same + 1e-3


def test_an_update_that_is_not_finite_is_skipped_and_counted(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "_get_learning_rate", lambda: 0.5)
    trainer.loss_type, trainer.beta = "dapo", 0.0
    loss_of(trainer, some_samples(4), max_tokens=100)
    skipped = trainer.stats._num_skipped
    trainer._get_grad_norm(trainer.model, grad_norm=torch.tensor(1.0))
    assert all(p.grad is not None for p in trainer.model.parameters())
    trainer._get_grad_norm(trainer.model, grad_norm=torch.tensor(float("nan")))
    assert all(p.grad is None for p in trainer.model.parameters())
    assert trainer.stats._num_skipped == skipped + 1
    assert trainer.stats.learning_rate == 0.5


def test_a_batch_gets_as_many_passes_as_the_stage_asks_for(
    trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge.train.batch import write_batch
    from forge.train.trainer.child.control import TakenBatch

    write_batch(tmp_path / "b.npz", some_samples(5))
    offered = [TakenBatch(step=1, samples_path=tmp_path / "b.npz", wait_s=0.0)]
    client = SimpleNamespace(take=lambda step: offered.pop() if offered else None)
    monkeypatch.setattr(trainer, "client", client)
    monkeypatch.setitem(trainer.settings.stage, "updates_per_batch", 2)
    passes = [trainer.get_batch_samples(iter(()), 1, trainer.args.device)[0] for _ in range(3)]
    first, second, none_left = passes
    assert first == second != []
    assert none_left == []
    monkeypatch.setattr(trainer.state, "global_step", 3)
    assert trainer.step == 1, "the second pass over the second batch is still to come"
