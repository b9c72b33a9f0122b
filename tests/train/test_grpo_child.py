"""The GRPO child against a control.sock of ours: what it learns, publishes, saves and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
import torch

from forge.config.schema import GrpoStage, ModelTable
from forge.records import Sample
from forge.train.handle import find_last_checkpoint, open_trainer

if TYPE_CHECKING:
    from tests.train.conftest import FakeSupervisor, Served

STAGE = GrpoStage(
    kind="grpo",
    steps=3,
    learning_rate=1e-3,
    micro_batch_tokens=60,
    save_every=2,
    updates_per_batch=1,
)


def make_samples(num: int, *, seed: int, version: int, model_dir: Path) -> list[Sample]:
    """Random tokens of random lengths, with the model's own log probabilities, shifted a little."""
    from transformers import Qwen3ForCausalLM

    from forge.train.trainer.weights import score

    model = Qwen3ForCausalLM.from_pretrained(model_dir)
    draw = torch.Generator().manual_seed(seed)
    found = []
    for i in range(num):
        prompt = torch.randint(
            5, 300, (int(torch.randint(4, 20, (1,), generator=draw)),), generator=draw
        )
        answer = torch.randint(
            5, 300, (int(torch.randint(1, 25, (1,), generator=draw)),), generator=draw
        )
        logprobs = torch.tensor(score(model, prompt.tolist(), answer.tolist()))
        found.append(
            Sample(
                sample_id=100 * seed + i,
                group_id=seed,
                rollout=i,
                turn=0,
                prompt_ids=tuple(prompt.tolist()),
                completion_ids=tuple(answer.tolist()),
                logprobs=tuple(logprobs.tolist()),
                advantage=float(torch.randn(1, generator=draw)),
                policy_version=version,
            )
        )
    return found


async def train(
    fake: FakeSupervisor, served: Served, stage: GrpoStage, *, model: Path, at: Path
) -> str:
    """Run the child to its end."""
    with anyio.fail_after(100):
        async with (
            served(fake),
            open_trainer(
                stage,
                model=ModelTable(path=str(model)),
                model_dir=model,
                rows_path=None,
                work_dir=at / "work",
                weights_dir=at / "weights",
                control_socket=fake.socket,
                socket_dir=fake.socket.parent,
                log_dir=at / "logs",
                seed=1,
            ) as child,
        ):
            reason = await child.wait()
            assert reason == "exit 0", child.last_log_lines(60)
            return reason


@pytest.mark.slow
def test_a_stage_is_trained_published_saved_and_resumed(
    tiny_model: Path, supervisor: FakeSupervisor, served: Served, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer, Qwen3ForCausalLM

    from forge.train.trainer.weights import score

    batches = [make_samples(n, seed=n, version=0, model_dir=tiny_model) for n in (5, 1, 8)]
    supervisor.batches = batches[:2]
    anyio.run(lambda: train(supervisor, served, STAGE, model=tiny_model, at=tmp_path))

    assert [t["step"] for t in supervisor.trained] == [1, 2]
    assert [p["step"] for p in supervisor.published] == [1, 2]
    assert [c["step"] for c in supervisor.checkpoints] == [2]
    first, second = (t["metrics"] for t in supervisor.trained)
    assert first["train/samples/count"] == 5
    assert first["train/tokens/sum"] == sum(len(s.completion_ids) for s in batches[0])
    assert first["train/logprob_gap/mean"] < 1e-5
    assert abs(first["train/ratio/mean"] - 1) < 1e-4
    # The second batch is of version 0 too, now one behind: none of its samples is current.
    assert "train/logprob_gap/mean" not in second
    assert second["train/kl_behaviour/mean"] > 0
    probe = supervisor.published[-1]["probe"]
    loaded = Qwen3ForCausalLM.from_pretrained(supervisor.published[-1]["path"])
    AutoTokenizer.from_pretrained(supervisor.published[-1]["path"])
    again = score(loaded, probe["prompt_ids"], probe["completion_ids"])
    assert again == pytest.approx(probe["logprobs"], abs=1e-6)
    behind = Qwen3ForCausalLM.from_pretrained(supervisor.published[0]["path"])
    old = score(behind, probe["prompt_ids"], probe["completion_ids"])
    gap = sum(abs(a - b) for a, b in zip(old, probe["logprobs"], strict=True)) / len(old)
    assert gap > 1e-3, "a replica one version behind must be seen"

    last = find_last_checkpoint(tmp_path / "work")
    assert last is not None
    assert last.name == "checkpoint-2"
    supervisor.batches = batches
    supervisor.order.clear()
    anyio.run(lambda: train(supervisor, served, STAGE, model=tiny_model, at=tmp_path))
    assert supervisor.order[0] == "/publish"
    assert [p["step"] for p in supervisor.published] == [1, 2, 2, 3]
    assert supervisor.published[2]["path"] != supervisor.published[1]["path"]
    assert [t["step"] for t in supervisor.trained] == [1, 2, 3]
    resumed = Qwen3ForCausalLM.from_pretrained(supervisor.published[2]["path"]).state_dict()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(resumed[name], tensor)
