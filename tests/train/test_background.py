"""Publishing beside training: only if staleness allows it, one at a time, and no error is lost."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forge.config.schema import GrpoStage, RolloutTable
from forge.train.batch import write_batch
from tests.shared_memory import FakeIpc
from tests.train.samples import make_samples
from tests.train.trained import settings_of, train_grpo

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

STAGE = GrpoStage(kind="grpo", steps=4, learning_rate=1e-3, micro_batch_tokens=200)
PATIENCE_S = 0.3
"""How long to wait for a `take` that must not come."""


class SlowReplicas:
    """A supervisor in this process. Its replicas load weights until the trainer takes the next
    batch."""

    def __init__(self, at: Path) -> None:
        self.path = at / "batch.npz"
        write_batch(self.path, make_samples(4, seed=3))
        self.order: list[str] = []
        self._asked = threading.Condition()
        self.patience_s = PATIENCE_S

    def take(self, *, step: int) -> Any:
        with self._asked:
            self.order.append(f"take {step}")
            self._asked.notify_all()
        if step == STAGE.steps:
            return None
        return SimpleNamespace(step=step + 1, samples_path=self.path, wait_s=0.0)

    def publish(self, *, step: int, **body: Any) -> int:
        with self._asked:
            self.order.append(f"publish {step}")
            is_last = step == STAGE.steps
            self._asked.wait_for(lambda: is_last or f"take {step}" in self.order, self.patience_s)
            self.order.append(f"published {step}")
        return step

    def trained(self, **body: Any) -> Any:
        return SimpleNamespace(save=False, evaluate=False)

    checkpoint = trained


def train(
    model: Path, at: Path, *, staleness: int, stage: GrpoStage = STAGE,
    client: SlowReplicas | None = None, **keys: Any,
) -> SlowReplicas:  # fmt: skip
    client = client or SlowReplicas(at)
    if staleness:
        client.patience_s = 30.0
    rollout = RolloutTable(max_staleness=staleness)
    train_grpo(settings_of(stage, model, at, rollout=rollout, **keys), client)
    return client


def test_the_next_batch_is_taken_while_the_weights_are_loaded(
    tiny_model: Path, tmp_path: Path
) -> None:
    order = train(tiny_model, tmp_path, staleness=1).order
    for step in range(1, STAGE.steps):
        assert order.index(f"take {step}") < order.index(f"published {step}")
        assert order.index(f"published {step}") < order.index(f"publish {step + 1}")


def test_on_policy_no_batch_is_taken_before_the_weights_are_served(
    tiny_model: Path, tmp_path: Path
) -> None:
    order = train(tiny_model, tmp_path, staleness=0).order
    for step in range(1, STAGE.steps):
        assert order.index(f"published {step}") < order.index(f"take {step}")


def test_an_evaluated_step_waits_for_its_publish(tiny_model: Path, tmp_path: Path) -> None:
    settings: Any = settings_of(STAGE, tiny_model, tmp_path, eval_every=2)
    assert [settings.is_published_in_background(step) for step in (1, 2, 3)] == [True, False, True]


def test_weights_are_published_every_nth_step_and_at_the_last(
    tiny_model: Path, tmp_path: Path
) -> None:
    stage = STAGE.model_copy(update={"publish_every": 3})
    order = train(tiny_model, tmp_path, staleness=1, stage=stage).order
    assert [call for call in order if call.startswith("publish ")] == ["publish 3", "publish 4"]


class Readers(SlowReplicas):
    """Engines that read weights where the trainer has them, or in files."""

    def __init__(self, at: Path) -> None:
        super().__init__(at)
        self.read: dict[int, dict[str, Any]] = {}
        self.shared: list[int] = []

    def publish(self, *, step: int, path: Path, **body: Any) -> int:
        from safetensors.torch import load_file

        from forge.process.shared_weights import is_shared, open_shared

        if is_shared(path):
            self.shared.append(step)
            self.read[step] = {name: tensor.clone() for name, tensor in open_shared(path)}
        else:
            self.read[step] = load_file(path / "model.safetensors")
        return step


@pytest.mark.parametrize("staleness", [0, 1])
def test_shared_weights_are_those_of_files_and_are_freed_when_all_have_read_them(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staleness: int
) -> None:
    import torch

    ipc, found = FakeIpc(monkeypatch), []
    for shares in (False, True):
        at = tmp_path / f"{shares}"
        at.mkdir()
        client = Readers(at)
        train(
            tiny_model, at, staleness=staleness, stage=STAGE.model_copy(update={"save_every": 2}),
            client=client, shares_weights=shares, publish_dtype=torch.bfloat16,
        )  # fmt: skip
        found.append(client)
    files, shared = found
    assert (files.shared, shared.shared) == ([], [1, 3]), "checkpoints and the last are files"
    assert all(tensor() is None for tensor in ipc.tensors)
    assert ipc.tensors
    for step, weights in files.read.items():
        assert weights.keys() == shared.read[step].keys()
        for name, tensor in weights.items():
            assert torch.equal(tensor, shared.read[step][name]), (step, name)


def test_one_copy_of_shared_weights_is_on_the_gpu(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge.train.trainer import grpo as turns

    ipc, alive, copy = FakeIpc(monkeypatch), list[int](), turns.snapshot
    trained, copied = threading.Event(), threading.Event()

    class Late(Readers):
        def publish(self, *, step: int, **body: Any) -> int:
            super().publish(step=step, **body)
            if step == 1:
                trained.wait(30.0)
                copied.wait(PATIENCE_S)
            return step

        def trained(self, *, step: int, **body: Any) -> Any:
            if step == 2:
                trained.set()
            return super().trained(**body)

    def snapshot(model: Any, **keys: Any) -> Any:
        alive.append(sum(tensor() is not None for tensor in ipc.tensors))
        if ipc.tensors:
            copied.set()
        return copy(model, **keys)

    monkeypatch.setattr(turns, "snapshot", snapshot)
    stage = STAGE.model_copy(update={"save_every": 4})
    train(
        tiny_model, tmp_path, staleness=1, stage=stage, client=Late(tmp_path), shares_weights=True
    )
    assert ipc.tensors
    assert set(alive[:-1]) == {0}, "the last is a file's, on the host"


def test_a_snapshot_is_not_changed_by_later_training(tiny_model: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import Qwen3ForCausalLM

    from forge.train.trainer.publish.weights import save_weights, snapshot

    model = Qwen3ForCausalLM.from_pretrained(tiny_model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copy = snapshot(model, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    save_weights(model, tmp_path / "w", model_dir=tiny_model, sync=False, weights=copy)
    written = load_file(tmp_path / "w" / "model.safetensors")
    assert "lm_head.weight" not in written, "tied weights are written once"
    for name, tensor in written.items():
        assert tensor.dtype == torch.bfloat16
        torch.testing.assert_close(tensor.float(), before[name], atol=1e-2, rtol=1e-2)
    again = Qwen3ForCausalLM.from_pretrained(tmp_path / "w", dtype="auto")
    assert again.dtype == torch.float32, "the config is the model's own"


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_biases_of_a_router_are_written_in_f32_whatever_the_dtype(is_wrapped: bool) -> None:
    """Four biases that differ in f32 and tie in bf16: a parameter and a buffer."""
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from transformers import AfmoeConfig, AfmoeForCausalLM

    from forge.train.trainer.publish.weights import snapshot

    config = AfmoeConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, moe_intermediate_size=8,
        num_hidden_layers=3, num_dense_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, num_experts=4, num_experts_per_tok=2, num_shared_experts=1,
    )  # fmt: skip
    model: Any = AfmoeForCausalLM(config)
    biases = torch.tensor([0.1, 0.1003, 0.1006, 0.1009])
    layers = model.model.layers
    layers[1].mlp.expert_bias.data.copy_(biases)
    layers[2].register_buffer("correction", biases)
    if is_wrapped:
        for i in (1, 2):
            layers[i] = checkpoint_wrapper(layers[i])
    copy = snapshot(model, dtype=torch.bfloat16)
    assert copy["model.layers.1.mlp.expert_bias"].tolist() == biases.tolist()
    assert copy["model.layers.2.correction"].tolist() == biases.tolist()
    assert copy["model.layers.1.self_attn.q_proj.weight"].dtype == torch.bfloat16


def test_a_rank_that_writes_nothing_copies_nothing(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge.train.trainer import grpo as turns
    from forge.train.trainer.grpo import make_trainer
    from forge.train.trainer.publish import weights

    num_copied: list[int] = []

    def snapshot(model: Any, **keys: Any) -> Any:
        found = weights.snapshot(model, **keys)
        num_copied.append(len(found))
        return found

    monkeypatch.setattr(turns, "snapshot", snapshot)
    client: Any = SimpleNamespace(publish=lambda **body: 1)
    trainer = make_trainer(settings_of(STAGE, tiny_model, tmp_path), client=client)
    trainer.world.rank = 1
    trainer.publish()
    trainer.world.rank = 0
    trainer.publish()
    assert num_copied == [0, len(trainer.policy.state_dict())]
