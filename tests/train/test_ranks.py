"""Two ranks are one trainer: the same loss, gradients and weights, one reporter, one end."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import copy
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.config.schema import GrpoStage, SftStage
from forge.errors import ConfigError
from forge.process.environment import Rendezvous, free_port, rank_envs
from forge.train.handle import open_trainer
from tests.train.conftest import FakeSupervisor, Served
from tests.train.samples import make_group, make_samples
from tests.train.trained import job_of, weights_of

GRPO = GrpoStage(kind="grpo", steps=3, learning_rate=1e-3, micro_batch_tokens=60, save_every=2)
SFT = SftStage(kind="sft", steps=4, learning_rate=3e-3, batch_size=8, micro_batch_tokens=100)
SAME = ("loss/mean", "grad_norm/value", "ratio/mean", "ratio/max", "kl_behaviour/mean",
        "entropy/mean", "tokens/sum", "samples/count")  # fmt: skip


async def run(
    stage: GrpoStage | SftStage,
    fake: FakeSupervisor,
    served: Served,
    *,
    model: Path,
    at: Path,
    num_ranks: int,
    during: Callable[[int], None] | None = None,
) -> str:
    """Run the child to its end; returns its end reason. `during` gets its pid once it trains."""
    (at / f"{num_ranks}").mkdir(exist_ok=True)
    if (at / "rows.jsonl").exists():
        copy(at / "rows.jsonl", at / f"{num_ranks}")
    job = job_of(stage, fake, model_dir=model, at=at / f"{num_ranks}", num_ranks=num_ranks)
    async with served(fake), open_trainer(job) as child:
        with anyio.fail_after(200):
            if during is not None:
                while "/take" not in fake.order:
                    assert child.is_alive, child.last_log_lines(60)
                    await anyio.sleep(0.1)
                during(child.pid)
            reason = await child.wait()
        assert during is not None or reason == "exit 0", child.last_log_lines(60)
        return reason


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_ranks_that_pack_train_grpo_as_one_that_does_not(
    tiny_model: Path, supervisor: FakeSupervisor, served: Served, tmp_path: Path
) -> None:
    import torch

    # 7 siblings do not divide by 2; from a single sample the second rank gets only filler.
    supervisor.batches = [
        make_group(seed=7, siblings=7), make_group(seed=8, turns=1)[:1], make_samples(4, seed=4)
    ]  # fmt: skip
    found = {}
    for num_ranks in (1, 2):
        supervisor.clear()
        stage = GRPO.model_copy(update={"packing": num_ranks == 2})
        run_on = partial(run, stage, supervisor, served, model=tiny_model, at=tmp_path)
        anyio.run(partial(run_on, num_ranks=num_ranks))
        found[num_ranks] = list(supervisor.trained), list(supervisor.published)
        assert [c["step"] for c in supervisor.checkpoints] == [2, 3]
        saved = [p.name for p in (tmp_path / f"{num_ranks}" / "work").glob("checkpoint-*")]
        assert sorted(saved) == ["checkpoint-2", "checkpoint-3"]
    (one, one_out), (two, two_out) = found[1], found[2]
    assert [t["step"] for t in two] == [1, 2, 3], "rank 0 alone reports"
    for a, b in zip(one, two, strict=True):
        want, got = a["metrics"], b["metrics"]
        wanted = {f"train/{name}": want[f"train/{name}"] for name in SAME}
        assert {key: got[key] for key in wanted} == pytest.approx(wanted, rel=2e-5, abs=1e-6)
        assert got["train/micro_batches/count"] % 2 == 0
    last, same = weights_of(one_out[-1]), weights_of(two_out[-1])
    first = weights_of(one_out[0])
    for name, tensor in last.items():
        torch.testing.assert_close(same[name], tensor, atol=2e-5, rtol=1e-4, msg=name)
    assert any((first[n] - t).abs().max() > 1e-3 for n, t in last.items()), (
        "the weights have changed"
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_ranks_with_micro_batches_train_sft_as_one_whole_batch_does(
    tiny_model: Path, supervisor: FakeSupervisor, served: Served, tmp_path: Path
) -> None:
    import torch

    draw = random.Random(0)
    with (tmp_path / "rows.jsonl").open("w") as file:
        for _ in range(30):
            size = draw.randrange(6, 40)
            ids = [draw.randrange(5, 300) for _ in range(size)]
            row = {"input_ids": ids, "completion_mask": [0] * 3 + [1] * (size - 3)}
            file.write(json.dumps(row) + "\n")
    found = []
    whole = SFT.model_copy(update={"micro_batch_tokens": 10_000})
    packed = SFT.model_copy(update={"packing": True})
    for stage, num_ranks in ((whole, 1), (packed, 2)):
        supervisor.clear()
        run_it = partial(run, stage, supervisor, served, model=tiny_model, at=tmp_path)
        anyio.run(partial(run_it, num_ranks=num_ranks))
        assert [p["step"] for p in supervisor.published] == [4]
        found.append((supervisor.progress[-1]["metrics"], weights_of(supervisor.published[0])))
    (metrics, weights), (same_metrics, same_weights) = found
    for name in ("train/loss/mean", "train/token_accuracy/mean"):
        assert same_metrics[name] == pytest.approx(metrics[name], rel=0.05)
    for name, tensor in weights.items():
        torch.testing.assert_close(same_weights[name], tensor, atol=5e-5, rtol=1e-3, msg=name)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ranks_on_two_machines_train_as_one_and_continue_their_checkpoint(
    tiny_model: Path, supervisor: FakeSupervisor, served: Served, tmp_path: Path
) -> None:
    """The second machine has nothing but the model, and the checkpoint of a restart."""
    import torch

    supervisor.batches = [make_group(seed=7, siblings=7), make_samples(4, seed=4)]
    run_it = partial(run, GRPO, supervisor, served, model=tiny_model, at=tmp_path)
    anyio.run(partial(run_it, num_ranks=1))
    want = weights_of(supervisor.published[-1])
    supervisor.clear()
    both, stage = supervisor.batches, GRPO.model_copy(update={"steps": 2, "save_every": 1})
    for supervisor.batches in (both[:1], both):
        anyio.run(run_on_two_machines, stage, supervisor, served, tiny_model, tmp_path)
    assert [each["step"] for each in supervisor.trained] == [1, 2]
    got = weights_of(supervisor.published[-1])
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, atol=2e-5, rtol=1e-4, msg=name)
    saved = tmp_path / "head" / "work" / "checkpoint-2"
    assert {path.name for path in saved.glob("rng_state*")} == {
        "rng_state_0.pth",
        "rng_state_1.pth",
    }
    assert list((tmp_path / "other").rglob("model.safetensors")) == []


async def run_on_two_machines(
    stage: GrpoStage, fake: FakeSupervisor, served: Served, model: Path, at: Path
) -> None:
    """One rank on each; the other machine's files are in a directory of their own."""
    host = "127.0.0.1"
    head = job_of(stage, fake, model_dir=model, at=at / "head", num_ranks=2)
    other = job_of(stage, fake, model_dir=model, at=at / "other", num_ranks=2)
    meeting = Rendezvous(address=host, port=free_port(host), host=host, first=0, num_here=1)
    head = replace(head, meeting=meeting)
    other = replace(
        other, meeting=replace(meeting, first=1), checkpoint=head.checkpoint,
        control_socket=at / "none.sock",
    )  # fmt: skip
    async with served(fake), open_trainer(other) as second, open_trainer(head) as first:
        with anyio.fail_after(200):
            assert await first.wait() == "exit 0", first.last_log_lines(60)
            assert await second.wait() == "exit 0", second.last_log_lines(60)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_shards_of_fsdp_get_the_gradients_of_all_ranks(tmp_path: Path) -> None:
    """The output layer too, and in bf16, whose gradients are summed in f32."""
    import torch

    from tests.train.sharded import gradients, untied_model

    def sharded(num: int, precision: str) -> dict[str, Any]:
        out = str(tmp_path / "found.pt")
        command = [sys.executable, "-m", "tests.train.sharded", out, precision]
        ranks = [subprocess.Popen(command, env=env) for env in rank_envs(num)]
        try:
            assert [rank.wait(timeout=350) for rank in ranks] == [0] * num
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        return torch.load(out)

    exact, one, two = gradients(untied_model()), sharded(1, "bf16"), sharded(2, "bf16")
    for name, gradient in sharded(2, "f32").items():
        torch.testing.assert_close(gradient, exact[name], msg=name)
        torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rank_killed_by_a_signal_ends_the_trainer_with_that_signal(
    tiny_model: Path, supervisor: FakeSupervisor, served: Served, tmp_path: Path
) -> None:
    supervisor.batches = [make_samples(4, seed=1)]
    supervisor.num_waits = 10_000
    ranks: list[int] = []

    def kill_the_second(pid: int) -> None:
        ranks.extend(ranks_of(pid))
        os.kill(ranks[1], signal.SIGKILL)

    run_it = partial(run, GRPO, supervisor, served, model=tiny_model, at=tmp_path)
    reason = anyio.run(partial(run_it, num_ranks=2, during=kill_the_second))
    assert reason.startswith("killed by signal 9")
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


def ranks_of(pid: int) -> list[int]:
    """Pids of the ranks that a trainer started, in order of their rank."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        for item in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            if item.startswith(b"RANK="):
                found[int(item[5:])] = int(child)
    return [found[rank] for rank in sorted(found)]


@given(num=st.integers(1, 30), max_tokens=st.integers(1, 300), num_ranks=st.integers(1, 5),
       layout=st.sampled_from(["padded", "packed", "shared"]))  # fmt: skip
def test_all_ranks_get_the_same_number_of_micro_batches_and_each_sample_counts_once(
    num: int, max_tokens: int, num_ranks: int, layout: str
) -> None:
    from forge.train.trainer.grpo import sequences_of
    from forge.train.trainer.packed.sequences import RowLayout, cut_batch

    batch = sequences_of(make_samples(num, seed=num), loss="grpo", longest=30, version=0)
    shares = [
        cut_batch(
            batch, max_tokens=max_tokens, rank=rank, num_ranks=num_ranks, layout=RowLayout(layout)
        )
        for rank in range(num_ranks)
    ]
    assert len({len(share) for share in shares}) == 1
    everything = [m for share in shares for m in share]
    counted = [m for m in everything if not m.is_filler]
    assert sorted(id(s) for m in counted for s in m.sequences) == sorted(map(id, batch))
    assert sum(m.share for m in everything) == pytest.approx(1)
    total = sum(float(m.values["weight"].sum()) for m in everything)
    assert total == pytest.approx(1, rel=1e-5)
    for m in counted:
        assert len(m.sequences) == 1 or m.num_forwarded <= max_tokens
    if len(counted) < len(everything):
        assert len(counted) == num, "filler only if every sample has a micro-batch of its own"


async def test_a_batch_that_the_ranks_cannot_share_is_refused(
    tiny_model: Path, tmp_path: Path
) -> None:
    fake: Any = SimpleNamespace(socket=tmp_path / "none.sock")
    job = job_of(SFT, fake, model_dir=tiny_model, at=tmp_path, num_ranks=3)
    with pytest.raises(ConfigError, match="batch_size: found 8, which 3 trainer GPUs"):
        async with open_trainer(job):
            pass
