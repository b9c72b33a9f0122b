"""The SFT child: killed midway and resumed, it ends with the weights of an undisturbed run."""

import json
import random
import shutil
from collections import Counter
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import torch

from forge.config.schema import SftStage
from forge.train.checkpoints import find_resume_point
from forge.train.handle import open_trainer
from tests.train.conftest import FakeSupervisor, Served
from tests.train.trained import job_of, settings_of

STAGE = SftStage(
    kind="sft", steps=9, learning_rate=3e-3, batch_size=8, save_every=3, warmup_steps=2, threads=2
)


def write_rows(path: Path) -> None:
    """40 rows that count upwards, with different lengths; the first three tokens are the prompt."""
    draw = random.Random(0)
    with path.open("w") as file:
        for _ in range(40):
            start, size = draw.randrange(5, 200), draw.randrange(6, 40)
            row = {
                "input_ids": list(range(start, start + size)),
                "completion_mask": [0] * 3 + [1] * (size - 3),
            }
            file.write(json.dumps(row) + "\n")


async def train(
    fake: FakeSupervisor, served: Served, *, model: Path, at: Path, kill_at: int
) -> str:
    """Run the child to its end, or kill it once it has saved step `kill_at`."""
    saved = anyio.Event()
    fake.on_checkpoint = lambda step: saved.set() if step == kill_at else None
    job = job_of(STAGE, fake, model_dir=model, at=at)
    async with served(fake), open_trainer(job) as child:
        with anyio.fail_after(100):
            if kill_at:
                await saved.wait()
                await child.kill()
            return await child.wait()


def trainer_of(model: Path, at: Path, stage: SftStage = STAGE) -> Any:
    from forge.train.trainer.sft import make_trainer, read_rows

    settings = settings_of(stage, model, at, seed=1, work_dir=at / "undisturbed")
    return make_trainer(settings, rows=read_rows(at / "rows.jsonl"))


def undisturbed(model: Path, at: Path) -> dict[str, torch.Tensor]:
    trainer = trainer_of(model, at)
    trainer.train()
    return trainer.model.state_dict()


def loss_and_gradients(trainer: Any) -> tuple[float, dict[str, torch.Tensor]]:
    loss = trainer.training_step(trainer.model, trainer.next_batch())
    gradients = {n: p.grad.clone() for n, p in trainer.model.named_parameters()}
    return float(loss), gradients


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("packing", "threads"), [(False, 1), (True, 1), (False, 3), (True, 2)])
@pytest.mark.parametrize("budget", [120, 16384])
def test_loss_and_gradients_are_those_of_transformers_however_the_rows_are_laid(
    tiny_model: Path, tmp_path: Path, packing: bool, threads: int, budget: int
) -> None:
    from transformers import Qwen3ForCausalLM

    write_rows(tmp_path / "rows.jsonl")
    keys = {"steps": 1, "batch_size": 40, "packing": packing, "micro_batch_tokens": budget}
    stage = STAGE.model_copy(update={**keys, "threads": threads})
    trainer = trainer_of(tiny_model, tmp_path, stage)
    loss, gradients = loss_and_gradients(trainer)
    plain = Qwen3ForCausalLM.from_pretrained(tiny_model)
    num = sum(len(row.trained) for row in trainer.rows)
    want = torch.zeros(())
    for row in trainer.rows:
        ids = torch.from_numpy(row.ids)[None]
        labels = torch.full_like(ids, -100)
        labels[0, row.trained] = ids[0, row.trained]
        want = want + plain(input_ids=ids, labels=labels).loss * (len(row.trained) / num)
    want.backward()
    assert loss == pytest.approx(want.item(), rel=1e-6)
    for name, p in plain.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad, atol=1e-6, rtol=1e-4, msg=name)
    assert trainer.take_scored() == (num, pytest.approx(0.1, abs=0.1))


@pytest.mark.filterwarnings("ignore")
def test_without_a_padding_token_training_is_the_same_and_no_file_gets_one(
    tiny_model: Path, tmp_path: Path
) -> None:
    from forge.train.trainer.publish.weights import save_weights

    write_rows(tmp_path / "rows.jsonl")
    bare, stage = tmp_path / "bare", STAGE.model_copy(update={"steps": 1, "batch_size": 40})
    shutil.copytree(tiny_model, bare)
    for name, key in (("tokenizer_config.json", "pad_token"), ("config.json", "pad_token_id")):
        settings = json.loads((bare / name).read_text())
        assert settings.pop(key) is not None
        (bare / name).write_text(json.dumps(settings))
    trainer = trainer_of(bare, tmp_path, stage)
    loss, gradients = loss_and_gradients(trainer)
    want, theirs = loss_and_gradients(trainer_of(tiny_model, tmp_path, stage))
    assert loss == want
    assert all(torch.equal(theirs[name], gradient) for name, gradient in gradients.items())
    save_weights(trainer.model, tmp_path / "out", model_dir=bare, sync=False)
    before, after = (json.loads((d / "config.json").read_text()) for d in (bare, tmp_path / "out"))
    assert {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)} <= {
        "transformers_version"
    }
    assert "pad_token" not in json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_killed_stage_resumes_and_ends_with_the_weights_of_an_undisturbed_run(
    tiny_model: Path, supervisor: FakeSupervisor, served: Served, tmp_path: Path
) -> None:
    from transformers import Qwen3ForCausalLM

    write_rows(tmp_path / "rows.jsonl")
    reason = anyio.run(lambda: train(supervisor, served, model=tiny_model, at=tmp_path, kill_at=3))
    assert "killed" in reason
    assert not supervisor.published
    torn = tmp_path / "work" / ".staging" / "checkpoint-6"
    torn.mkdir(parents=True, exist_ok=True)
    last = find_resume_point(tmp_path / "work").path
    assert last.name in ("checkpoint-3", "checkpoint-6")

    reason = anyio.run(lambda: train(supervisor, served, model=tiny_model, at=tmp_path, kill_at=0))
    log = (tmp_path / "logs" / "trainer.log").read_text()
    assert reason == "exit 0", log[-3000:]
    assert f"from {last}" in log
    assert [c["step"] for c in supervisor.checkpoints][-1] == 9
    assert supervisor.progress[-1]["step"] == supervisor.progress[-1]["total"] == 9
    assert supervisor.progress[-1]["metrics"]["train/loss/mean"] < 5.5
    assert [p["step"] for p in supervisor.published] == [9]
    published = Qwen3ForCausalLM.from_pretrained(supervisor.published[0]["path"]).state_dict()
    for name, tensor in undisturbed(tiny_model, tmp_path).items():
        assert torch.equal(published[name], tensor), name


def test_batches_hold_rows_of_similar_length_and_every_row_once_in_a_pass() -> None:
    from forge.train.trainer.sft import batches

    draw = random.Random(0)
    lengths = [draw.randrange(10, 400) for _ in range(64)]

    def ordered(seed: int) -> list[int]:
        return list(chain(*islice(batches(lengths, batch_size=8, seed=seed), 12)))

    order = ordered(3)
    assert sorted(order[:64]) == list(range(64))
    assert len(order) == 96
    spreads = [
        max(lengths[i] for i in order[k : k + 8]) - min(lengths[i] for i in order[k : k + 8])
        for k in range(0, 64, 8)
    ]
    assert sum(spreads) / len(spreads) < 100
    assert order == ordered(3)
    assert order != ordered(4)


def test_each_source_has_its_share_of_the_rows_and_its_rows_take_turns() -> None:
    from forge.train.trainer.sft import batches

    draw = random.Random(1)
    lengths = [draw.randrange(10, 400) for _ in range(50)]
    sources = [0] * 43 + [1] * 7

    def order(num_batches: int) -> list[int]:
        weights = {0: 1.0, 1: 3.0}
        drawn = batches(lengths, batch_size=8, seed=3, sources=sources, weights=weights)
        return list(chain(*islice(drawn, num_batches)))

    rows = order(30)
    for end in range(48, len(rows) + 1, 48):  # an epoch of whole batches
        assert sum(sources[row] for row in rows[:end]) == end * 3 // 4
    times = Counter(rows)
    assert set(times) == set(range(50))
    for source in (0, 1):
        uses = [times[row] for row in range(50) if sources[row] == source]
        assert max(uses) - min(uses) <= 1
    assert rows[:96] == order(12), "a longer stage begins in the same order"


@pytest.mark.filterwarnings("ignore")
def test_tokens_per_second_count_trained_tokens_only(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge.train.trainer import sft as sft_stage
    from forge.train.trainer.child.control import StepOrders, StopFlag

    write_rows(tmp_path / "rows.jsonl")
    trainer = trainer_of(tiny_model, tmp_path)
    reported: list[dict[str, float]] = []

    def progress(*, metrics: dict[str, float], **_: Any) -> StepOrders:
        reported.append(metrics)
        return StepOrders()

    client: Any = SimpleNamespace(progress=progress)
    reporter = sft_stage.SftReporter(trainer, client=client, stop=StopFlag())
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(sft_stage, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    logs = dict.fromkeys(("loss", "grad_norm", "learning_rate"), 0.5)
    for trained, forwarded in ((300, 1000), (400, 3000)):
        trainer._num_scored = trained
        given = logs | {"num_tokens": forwarded}
        reporter.on_log(trainer.args, trainer.state, trainer.control, logs=given)
    assert "train/tokens/per_s" not in reported[0]
    assert reported[1]["train/tokens/per_s"] == 400 / 2.0


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_checkpoint_ordered_by_the_supervisor_is_saved_at_the_end_of_that_step(
    tiny_model: Path, tmp_path: Path
) -> None:
    from forge.train.trainer import sft as sft_stage
    from forge.train.trainer.child.control import StepOrders, StopFlag

    write_rows(tmp_path / "rows.jsonl")
    stage = STAGE.model_copy(update={"steps": 3, "save_every": 9})
    trainer = trainer_of(tiny_model, tmp_path, stage)
    saved: list[int] = []
    client: Any = SimpleNamespace(
        progress=lambda *, step, **_: StepOrders(save=step == 1),
        checkpoint=lambda *, step, path: saved.append(step),
    )
    trainer.add_callback(sft_stage.SftReporter(trainer, client=client, stop=StopFlag()))
    trainer.train()
    assert saved == [1, 3]
    last, first = (tmp_path / "undisturbed" / f"checkpoint-{step}" for step in (3, 1))
    assert find_resume_point(tmp_path / "undisturbed").path == last
    again = trainer_of(tiny_model, tmp_path, stage)
    again.train(resume_from_checkpoint=str(first))
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor), name


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_weights_alone_continues_the_schedule(
    tiny_model: Path, tmp_path: Path
) -> None:
    write_rows(tmp_path / "rows.jsonl")
    keys = {"steps": 4, "save_every": 2, "save": "weights", "schedule": "linear"}
    stage = STAGE.model_copy(update=keys)
    trainer = trainer_of(tiny_model, tmp_path, stage)
    trainer.train()
    first = tmp_path / "undisturbed" / "checkpoint-2"
    assert not list(first.glob("optimizer*"))
    assert trainer.take_checkpoint_s() > 0
    again = trainer_of(tiny_model, tmp_path, stage)
    rates: list[float] = []
    again.training_step = lambda *args: rates.append(again._get_learning_rate()) or torch.zeros(())
    again.train(resume_from_checkpoint=str(first))
    assert rates == pytest.approx([3e-3, 1.5e-3])
    assert again.state.global_step == 4


@pytest.mark.filterwarnings("ignore")
def test_a_disk_that_cannot_hold_a_checkpoint_is_found_before_the_first_step(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge.errors import ConfigError
    from forge.train.trainer.child import trainer as common

    write_rows(tmp_path / "rows.jsonl")
    trainer = trainer_of(tiny_model, tmp_path)
    weights = 4 * trainer.model.num_parameters()
    usage = SimpleNamespace(free=2 * weights)
    monkeypatch.setattr(common.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ConfigError, match=r"^save: found .* GB free in .*; free space, or"):
        trainer.require_disk()
    usage.free = 4 * weights
    trainer.require_disk()
