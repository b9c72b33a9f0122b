"""Mixtures of experts: one GRPO step, all weights or an adapter, served and probed as dense models
are."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forge.config.schema import GrpoStage, LoraTable, ModelTable
from forge.train.batch import write_batch
from tests.train.test_oom import settings_of
from tests.train.test_ranks import make_samples

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

STAGE = GrpoStage(kind="grpo", steps=1, learning_rate=3e-2, micro_batch_tokens=100, loss="dapo")
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "num_experts": 4, "num_experts_per_tok": 2, "initializer_range": 0.2,
}  # fmt: skip


def make_mixture(kind: str, at: Path, *, tokenizer: Path) -> Path:
    """A random model of that architecture, in a directory as a hub's."""
    import torch
    from transformers import (
        AfmoeConfig,
        AfmoeForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    torch.manual_seed(0)
    if kind == "afmoe":
        config = AfmoeConfig(
            **SIZES, num_dense_layers=1, num_shared_experts=1, sliding_window=16,
            layer_types=["sliding_attention", "full_attention"],
        )  # fmt: skip
        model: Any = AfmoeForCausalLM(config)
    else:
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES))
    # As TRL's SFT leaves it; generation in batches would fail with it.
    model.config.output_router_logits = kind == "qwen3_moe"
    model.save_pretrained(str(at))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (at / name).write_bytes((tokenizer / name).read_bytes())
    return at


class Supervisor:
    """Hands out one batch and remembers what came of it."""

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


def gap(engine: Any, probe: dict[str, Any]) -> float:
    """Mean |Δ logprob| of an engine to what the trainer says."""
    got = engine.score(np.array(probe["prompt_ids"]), np.array(probe["completion_ids"]))
    return float(np.abs(got - np.array(probe["logprobs"])).mean())


@pytest.mark.parametrize("lora", [None, LoraTable(r=4, target_modules=ATTENTION,
                                                 target_parameters=EXPERTS)],
                         ids=["full", "lora"])  # fmt: skip
@pytest.mark.parametrize("kind", ["qwen3_moe", "afmoe"])
def test_a_mixture_steps_and_is_served_with_what_it_learned(
    tiny_model: Path, tmp_path: Path, kind: str, lora: LoraTable | None
) -> None:
    from forge.serve.hf.engine import HfEngine, HfSettings
    from forge.train.trainer.child.control import StopFlag
    from forge.train.trainer.grpo.stage import Reporter, make_trainer

    model_dir = make_mixture(kind, tmp_path / "model", tokenizer=tiny_model)
    table = ModelTable(path=str(model_dir), lora=lora).model_dump(mode="json")
    server: Any = Supervisor(tmp_path)
    trainer = make_trainer(settings_of(STAGE, model_dir, tmp_path, model=table), control=server)
    trained = {name for name, p in trainer.policy.named_parameters() if p.requires_grad}
    if lora is not None:
        assert any("experts" in name for name in trained)
        assert not any("gate.weight" in name or "router" in name for name in trained)
    trainer.add_callback(Reporter(trainer, stop=StopFlag()))
    trainer.train()
    trainer.publisher.wait()
    assert server.metrics["train/grad_norm/value"] > 0
    (published,) = server.published
    engine = HfEngine(HfSettings(model_dir=model_dir, context_tokens=256, num_slots=2))
    assert gap(engine, published["probe"]) > 1e-3, "the old weights must be noticed"
    engine.load_weights(published["path"], version=1)
    assert gap(engine, published["probe"]) < 1e-4
    if lora is None:
        config = json.loads(Path(published["path"], "config.json").read_text())
        assert not config.get("output_router_logits")
        assert config["dtype"] == "float32"
