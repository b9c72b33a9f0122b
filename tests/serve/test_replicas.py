"""Real engine processes behind `open_replicas` and `ReplicaClient`."""

import json
import math
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import forge.serve.replica
from forge.config.schema import ServeTable
from forge.errors import ChildDied, ConfigError, MachineError, Stalled
from forge.exits import iter_leaves
from forge.process.ask import open_client
from forge.process.sockets import open_socket_dir
from forge.records import Finish, Prompt
from forge.serve.engines import check_engine
from forge.serve.replica import ReplicaClient, Restarts
from forge.serve.replicas import Replicas, open_replicas
from forge.serve.weights import Weights
from tests.serve.conftest import Reference
from tests.serve.observed import Lives, until

pytestmark = pytest.mark.slow
PROMPT = list(range(30))
DEADLINE_S = 60.0


@asynccontextmanager
async def served(
    reference: Reference,
    tmp_path: Path,
    *,
    adapter: Path | None = None,
    lives: Lives | None = None,
    deadline_s: float = DEADLINE_S,
    **table: Any,
) -> AsyncIterator[tuple[Replicas, Path]]:
    values = {"slots": 8, "context_tokens": 1024, "replicas": 1, **table}
    with open_socket_dir() as sockets, anyio.fail_after(deadline_s):
        async with open_replicas(
            ServeTable(**values),
            weights=Weights(full=reference.path, adapter=adapter),
            stop_token_ids=(),
            socket_dir=sockets,
            log_dir=tmp_path / "logs",
            work_dir=tmp_path / "work",
            observer=lives,
        ) as replicas:
            yield replicas, sockets


@pytest.fixture(scope="module")
async def shared(
    tied: Reference, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Replicas, Path, Path]]:
    """One replica for tests that leave it as it is: with its sockets and its log."""
    folder = tmp_path_factory.mktemp("shared")
    async with served(tied, folder, deadline_s=math.inf) as (replicas, sockets):
        yield replicas, sockets / "serve-0.sock", folder / "logs" / "serve-0.log"


async def test_a_publish_reaches_all_replicas_and_those_that_restart(
    tied: Reference, newer: Reference, tmp_path: Path
) -> None:
    lives, completion = Lives(), list(range(50, 90))
    old, new = (reference.logprobs(PROMPT, completion) for reference in (tied, newer))
    async with served(tied, tmp_path, lives=lives, replicas=2) as (replicas, sockets):
        await replicas.publish(newer.path, 7)
        for found in await replicas.probe(PROMPT, completion):
            assert np.abs(new - found).mean() <= 1e-4
        async with ReplicaClient(sockets / "serve-1.sock") as client:
            await client.load_weights(tied.path, version=6)
        fresh, stale = await replicas.probe(PROMPT, completion)
        assert np.abs(new - fresh).mean() <= 1e-4
        assert np.abs(new - stale).mean() > 0.05
        assert np.abs(old - stale).mean() <= 1e-4

        answers: list[int] = []
        async with anyio.create_task_group() as group:

            async def ask(seed: int) -> None:
                found = await replicas.generate(
                    Prompt(ids=tuple(PROMPT)), n=2, max_tokens=300, temperature=1.0, seed=seed
                )
                answers.extend(len(one.token_ids) for one in found)

            for seed in range(8):
                group.start_soon(ask, seed)
            await anyio.sleep(0.05)
            os.kill(lives.pids["serve-1"][0], signal.SIGKILL)
        assert answers == [300] * 16
        stats = replicas.stats()
        assert stats.generated_tokens == 16 * 300, "what was lost is not counted"
        await until(lambda: all(replica.is_up for replica in replicas.all))
        assert replicas.stats().num_restarts == 1
        again = (await replicas.probe(PROMPT, completion))[1]
        assert np.abs(new - again).mean() <= 1e-4, "the restarted one has the current weights"


async def test_a_refused_publish_leaves_the_old_weights_everywhere(
    tied: Reference, newer: Reference, make_adapter: Callable[..., Reference], tmp_path: Path
) -> None:
    completion = list(range(60, 90))
    adapted = make_adapter(tied, r=4)
    damaged = tmp_path / "damaged"
    shutil.copytree(newer.path, damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-500])
    async with served(tied, tmp_path, replicas=2) as (replicas, _):
        await replicas.publish(adapted.path, 1)
        with pytest.raises(ConfigError, match="truncated"):
            await replicas.publish(damaged, 2)
        assert replicas.version == 1
        for found in await replicas.probe(PROMPT, completion):
            assert np.abs(adapted.logprobs(PROMPT, completion) - found).mean() <= 1e-4
        (one,) = await replicas.generate(
            Prompt(ids=tuple(PROMPT)), n=1, max_tokens=9, temperature=1.0, seed=0
        )
        assert (one.min_version, one.max_version, one.finish) == (1, 1, Finish.LENGTH)


async def test_hf_passes_the_contract_of_an_engine(
    tied: Reference, newer: Reference, make_adapter: Callable[..., Reference], tmp_path: Path
) -> None:
    """Publish, probe, refusal, adapter, death and restart, like llama's replicas."""
    adapted, lives, tokens = make_adapter(newer, r=4), Lives(), list(range(50, 90))
    async with (
        served(tied, tmp_path, lives=lives, engine="hf", slots=4) as (replicas, sockets),
        ReplicaClient(sockets / "serve-0.sock") as client,
    ):
        assert (await client.health())["engine"] == "hf"
        asked = {"n": 3, "max_tokens": 20, "temperature": 0.9, "seed": 5}
        first = await replicas.generate(Prompt(ids=tuple(PROMPT)), **asked)
        assert first == await replicas.generate(Prompt(ids=tuple(PROMPT)), **asked)
        for one in first:
            expected = tied.logprobs(PROMPT, one.token_ids, temperature=0.9)
            assert np.abs(expected - one.logprobs).max() <= 1e-3
        for version, reference in enumerate((newer, adapted), start=1):
            await replicas.publish(reference.path, version)
            (found,) = await replicas.probe(PROMPT, tokens)
            assert np.abs(reference.logprobs(PROMPT, tokens) - found).max() <= 1e-3
        with pytest.raises(ConfigError, match="no such directory"):
            await replicas.publish(tmp_path / "gone", 3)
        with pytest.raises(ConfigError, match="no sleep"):
            await client.sleep()
        os.kill(lives.pids["serve-0"][0], signal.SIGKILL)
        (again,) = await replicas.generate(
            Prompt(ids=tuple(PROMPT)), n=1, max_tokens=9, temperature=1.0, seed=5
        )
        assert (again.min_version, len(lives.pids["serve-0"])) == (2, 2)
        expected = adapted.logprobs(PROMPT, again.token_ids)
        assert np.abs(expected - again.logprobs).max() <= 1e-3


async def test_a_client_that_hangs_up_frees_its_slots(shared: tuple[Replicas, Path, Path]) -> None:
    _, socket, log = shared
    async with ReplicaClient(socket) as client:

        async def running() -> int:
            found = await client.health()
            return found["running"] + found["waiting"]

        async def is_idle() -> bool:
            return await running() == 0

        with anyio.move_on_after(0.1):
            await client.complete(PROMPT, n=20, max_tokens=990)
        await until(is_idle)
        assert (await client.health())["generated_tokens"] < 20 * 990
        assert "Traceback" not in log.read_text()


async def test_a_stream_has_the_same_tokens_in_steps(shared: tuple[Replicas, Path, Path]) -> None:
    async with ReplicaClient(shared[1]) as client:
        how: dict[str, Any] = {"max_tokens": 50, "seed": 3, "temperature": 0.7}
        (whole,) = await client.complete(PROMPT, **how)
    async with open_client(shared[1], timeout_s=20) as http:
        body = {"prompt": PROMPT, **how, "stream": True}
        answer = await http.post("/v1/completions", json=body)
    lines = (line for line in answer.text.splitlines() if line.startswith("data: {"))
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    chunks = [event for event in events if "token_ids" in event]
    assert tuple(t for chunk in chunks for t in chunk["token_ids"]) == whole.token_ids
    last = chunks[-1]
    assert (last["finish_reason"], last["max_version"]) == ("length", whole.max_version)
    found = np.asarray(last["logprobs"]["token_logprobs"], np.float32)
    assert tuple(found.tolist()) == whole.logprobs
    assert len(chunks) > 10


async def test_a_silent_replica_is_named_in_the_error(tied: Reference, tmp_path: Path) -> None:
    lives = Lives()
    async with served(tied, tmp_path, lives=lives, request_timeout_s=1.0) as (replicas, _):
        os.kill(lives.pids["serve-0"][0], signal.SIGSTOP)
        with pytest.raises(Stalled, match=r"serve-0 was silent for 1 s; asked: POST /v1/comp"):
            await replicas.generate(
                Prompt(ids=tuple(PROMPT)), n=1, max_tokens=5, temperature=1.0, seed=0
            )
        os.kill(lives.pids["serve-0"][0], signal.SIGCONT)


async def test_a_hanging_replica_is_killed_and_restarted(
    tied: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forge.serve.replica, "HUNG_S", 1.0)
    monkeypatch.setattr(forge.serve.replica, "SHORT_TIMEOUT_S", 0.5)
    lives = Lives()
    async with served(tied, tmp_path, lives=lives) as (replicas, _):
        os.kill(lives.pids["serve-0"][0], signal.SIGSTOP)
        (one,) = await replicas.generate(
            Prompt(ids=tuple(PROMPT)), n=1, max_tokens=5, temperature=1.0, seed=0
        )
        assert len(one.token_ids) == 5
        assert replicas.stats().num_restarts == 1
        assert replicas.stats().generated_tokens == 5


async def test_a_replica_that_lost_its_socket_is_restarted_though_connections_are_open(
    tied: Reference, tmp_path: Path
) -> None:
    async with served(tied, tmp_path) as (replicas, _):
        (replica,) = replicas.all
        replica.socket_path.unlink()
        await until(lambda: replicas.stats().num_restarts and replica.is_up)
        assert replica.socket_path.exists()


async def test_replicas_answer_during_a_rolling_publish_and_mix_no_versions(
    tied: Reference, newer: Reference, tmp_path: Path
) -> None:
    async with served(tied, tmp_path, replicas=2) as (replicas, _):
        seen: list[tuple[int, int]] = []
        is_published = False

        async def ask(seed: int, max_tokens: int) -> None:
            for one in await replicas.generate(
                Prompt(ids=tuple(PROMPT)), n=2, max_tokens=max_tokens, temperature=1.0, seed=seed
            ):
                seen.append((one.min_version, one.max_version))  # noqa: PERF401

        async def keep_asking() -> None:
            seed = 100
            while not is_published:
                await ask(seed, 20)
                seed += 1

        async with anyio.create_task_group() as group:
            for seed in range(4):
                group.start_soon(ask, seed, 600)
            group.start_soon(keep_asking)
            await anyio.sleep(0.1)
            await replicas.publish(newer.path, 1, rolling=True)
            is_published = True
        assert set(seen) == {(0, 0), (1, 1)}, "none has tokens of both"
        await ask(0, 5)
        await ask(1, 5)
        assert seen[-4:] == [(1, 1)] * 4
        load = replicas.load()
        assert load.slots == 16


async def test_a_replica_that_keeps_dying_ends_the_run(
    tied: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = Lives()
    with pytest.RaisesGroup(ChildDied, flatten_subgroups=True) as raised:
        async with served(tied, tmp_path, lives=lives) as (replicas, _):
            monkeypatch.setattr(replicas.all[0], "_restarts", Restarts(limit=1, first_delay_s=0.01))
            for _ in range(2):
                os.kill(lives.pids["serve-0"][-1], signal.SIGKILL)
                await replicas.generate(
                    Prompt(ids=tuple(PROMPT)), n=1, max_tokens=5, temperature=1.0, seed=0
                )
            pytest.fail("it was restarted")
    (error,) = iter_leaves(raised.value)
    assert "serve-0 died more than 1 times in 10 min" in str(error)


async def test_a_replica_that_fails_to_start_reports_the_reason(
    tied: Reference, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    reference = type(tied)(path=empty, model=tied.model)
    with pytest.RaisesGroup(ChildDied, flatten_subgroups=True) as raised:
        async with served(reference, tmp_path):
            pytest.fail("it came up")
    (error,) = iter_leaves(raised.value)
    assert "serve-0 died" in str(error)
    assert "config.json: No such file" in str(error)


async def test_a_missing_engine_is_one_line_with_its_installation(tmp_path: Path) -> None:
    check_engine(ServeTable())
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(MachineError, match=r"llama_cpp is not installed in .*make setup") as raised:
        check_engine(ServeTable(python=bare, engine="llama"))
    assert "\n" not in str(raised.value)
