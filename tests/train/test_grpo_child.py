"""The GRPO child on a control.sock of the test: it trains, publishes, saves and resumes."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.config.schema import GrpoStage, LoraTable, ModelTable, RolloutTable
from forge.records import Sample
from forge.train.batch import write_batch
from forge.train.checkpoints import find_resume_point
from forge.train.handle import open_trainer
from tests.train.conftest import FakeSupervisor, Served
from tests.train.samples import make_samples, scored_by
from tests.train.trained import job_of, settings_of, train_grpo

STAGE = GrpoStage(kind="grpo", steps=5, learning_rate=1e-3, micro_batch_tokens=60, save_every=2)


async def train(fake: FakeSupervisor, served: Served, *, model: Path, at: Path) -> None:
    """Run the child until it ends: by itself, or by SIGTERM after the last batch is published."""
    job = job_of(STAGE, fake, model_dir=model, at=at)
    async with served(fake), open_trainer(job) as child:
        with anyio.fail_after(100):
            if fake.at_end == "wait":
                while child.is_alive and len(fake.published) < len(fake.batches) + 1:  # noqa: ASYNC110
                    await anyio.sleep(0.1)
                await child.stop()
            reason = await child.wait()
            assert reason.startswith("exit 0"), child.last_log_lines(60)


def as_before(probe: dict[str, Any]) -> dict[str, Any]:
    """The probe with the scores of the weights that were served before."""
    return probe | {"logprobs": probe["before"]}


def mean_gap(model_dir: str, probe: dict[str, Any]) -> float:
    """Mean |Δ logprob| between a model directory and a probe."""
    from transformers import Qwen3ForCausalLM

    from forge.train.trainer.publish.weights import score

    model = Qwen3ForCausalLM.from_pretrained(model_dir)
    got = score(model, probe["prompt_ids"], probe["completion_ids"])
    return sum(abs(a - b) for a, b in zip(got, probe["logprobs"], strict=True)) / len(got)


@pytest.mark.slow
def test_a_stage_is_trained_published_saved_and_resumed(
    tiny_model: Path, supervisor: FakeSupervisor, served: Served, tmp_path: Path
) -> None:
    batches = [scored_by(tiny_model, make_samples(n, seed=n)) for n in (5, 1, 8)]
    supervisor.batches = batches[:2]
    anyio.run(lambda: train(supervisor, served, model=tiny_model, at=tmp_path))

    assert [t["step"] for t in supervisor.trained] == [1, 2]
    assert [p["step"] for p in supervisor.published] == [1, 2]
    assert [c["step"] for c in supervisor.checkpoints] == [2]
    first, second = (t["metrics"] for t in supervisor.trained)
    assert first["train/samples/count"] == 5
    assert first["train/tokens/sum"] == sum(len(s.completion_ids) for s in batches[0])
    assert first["train/logprob_gap/mean"] < 1e-5
    assert abs(first["train/ratio/mean"] - 1) < 1e-4
    # The second batch is of version 0 too, now one version old: none of its samples is current.
    assert "train/logprob_gap/mean" not in second
    assert second["train/kl_behaviour/mean"] > 0
    before, after = supervisor.published
    assert mean_gap(after["path"], after["probe"]) < 1e-6
    assert mean_gap(before["path"], after["probe"]) > 1e-3, (
        "weights of one version earlier are detected"
    )
    assert before["probe"]["prompt_ids"] == after["probe"]["prompt_ids"]
    assert mean_gap(str(tiny_model), as_before(before["probe"])) < 1e-6
    assert mean_gap(before["path"], as_before(after["probe"])) < 1e-6

    last = find_resume_point(tmp_path / "work").path
    assert last.name == "checkpoint-2"
    supervisor.batches, supervisor.at_end = batches, "wait"
    supervisor.order.clear()
    anyio.run(lambda: train(supervisor, served, model=tiny_model, at=tmp_path))

    assert supervisor.order[0] == "/publish", "before anything is generated"
    assert [p["step"] for p in supervisor.published] == [1, 2, 2, 3]
    again, last_one = supervisor.published[2:]
    assert again["probe"] == {k: v for k, v in after["probe"].items() if k != "before"}
    assert mean_gap(again["path"], as_before(last_one["probe"])) < 1e-6
    assert again["path"] != after["path"]
    weights = [Path(p["path"], "model.safetensors").read_bytes() for p in (after, again)]
    assert weights[0] == weights[1]
    assert [t["step"] for t in supervisor.trained] == [1, 2, 3]
    assert [c["step"] for c in supervisor.checkpoints] == [2, 3], "SIGTERM saves the last step"
    last = find_resume_point(tmp_path / "work").path
    assert last.name == "checkpoint-3"


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_an_adapter_is_published_without_its_base_and_trained_further(
    tiny_model: Path, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import Qwen3ForCausalLM

    from forge.train.trainer.grpo import make_trainer
    from forge.train.trainer.publish.weights import Tokens, probe, save_weights, score

    table = ModelTable(path=str(tiny_model), lora=LoraTable(r=4))
    settings = settings_of(STAGE, tiny_model, tmp_path, model=table)
    client: Any = None
    trainer = make_trainer(settings, client=client)
    for name, parameter in trainer.policy.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_()
    save_weights(trainer.policy, tmp_path / "a", model_dir=tiny_model, sync=False)
    assert (tmp_path / "a" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "a" / "model.safetensors").exists()
    wanted = probe(trainer.policy, Tokens(prompt=range(5, 30), completion=range(40, 72)))
    base = Qwen3ForCausalLM.from_pretrained(tiny_model)
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "a"))
    got = score(loaded, wanted["prompt_ids"], wanted["completion_ids"])
    assert got == pytest.approx(wanted["logprobs"], abs=1e-5)

    again = replace(settings, adapter=tmp_path / "a")
    policy = make_trainer(again, client=client).policy
    got = score(policy, wanted["prompt_ids"], wanted["completion_ids"])
    assert got == pytest.approx(wanted["logprobs"], abs=1e-5), "the next stage continues from it"
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)


class OrdersAfterStep1:
    """A supervisor in this process: gives batches, and orders a checkpoint and an evaluation after
    step 1."""

    def __init__(self, at: Path, batches: list[list[Sample]]) -> None:
        self.at, self.batches = at, batches
        self.calls: list[tuple[str, int]] = []

    def take(self, *, step: int) -> Any:
        from forge.train.trainer.child.control import TakenBatch

        self.calls.append(("take", step))
        if step == len(self.batches):
            return None
        write_batch(self.at / f"{step}.npz", self.batches[step])
        return TakenBatch(step=step + 1, samples_path=self.at / f"{step}.npz", wait_s=0.0)

    def trained(self, *, step: int, metrics: Any) -> Any:
        from forge.train.trainer.child.control import StepOrders

        self.calls.append(("trained", step))
        return StepOrders(save=step == 1, evaluate=step == 1)

    def publish(self, *, step: int, path: Path, probe: Any) -> int:
        time.sleep(0.2)  # a trainer that does not wait takes its next batch meanwhile
        self.calls.append(("publish", step))
        return step

    def checkpoint(self, *, step: int, path: Path) -> None:
        self.calls.append(("checkpoint", step))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_orders_of_the_supervisor_are_done_before_the_next_step(
    tiny_model: Path, tmp_path: Path
) -> None:
    stage = STAGE.model_copy(update={"publish_every": 2, "save_every": 100})
    rollout = RolloutTable(max_staleness=1)
    settings = settings_of(stage, tiny_model, tmp_path, rollout=rollout)
    settings.weights_dir.mkdir()
    batches = [scored_by(tiny_model, make_samples(2, seed=n)) for n in (1, 2, 3)]
    client = OrdersAfterStep1(tmp_path, batches)
    train_grpo(settings, client)
    assert client.calls[:5] == [
        ("take", 0), ("trained", 1), ("publish", 1), ("checkpoint", 1), ("take", 1),
    ]  # fmt: skip
    assert [step for call, step in client.calls if call == "publish"] == [1, 2]
    assert [step for call, step in client.calls if call == "checkpoint"] == [1, 3]
    taken, published = client.calls.index(("take", 2)), client.calls.index(("publish", 2))
    assert taken < published, "other steps are published beside the next step"
