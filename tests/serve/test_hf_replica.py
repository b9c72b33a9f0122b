"""The transformers engine as a child process of `open_replicas`, like in a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest

from forge.config.schema import ServeTable
from forge.errors import ConfigError
from forge.process.sockets import open_socket_dir
from forge.records import Prompt
from forge.serve.client import ReplicaClient
from forge.serve.replicas import open_replicas
from forge.serve.weights import Weights
from tests.serve.observed import Pids

if TYPE_CHECKING:
    from conftest import Reference

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
PROMPT, TOKENS = list(range(30)), list(range(50, 90))


async def test_hf_passes_the_contract_of_an_engine(
    tied: Reference, newer: Reference, make_adapter: Callable[..., Reference], tmp_path: Path
) -> None:
    """Publish, probe, refusal, adapter, death and restart, like llama's replicas."""
    adapted, pids = make_adapter(newer, r=4), Pids()
    table = ServeTable(engine="hf", slots=4, context_tokens=256)
    with open_socket_dir() as sockets, anyio.fail_after(120):
        async with (
            open_replicas(
                table,
                weights=Weights(full=tied.path),
                stop_token_ids=(),
                socket_dir=sockets,
                log_dir=tmp_path,
                work_dir=tmp_path,
                observer=pids,
            ) as replicas,
            ReplicaClient(sockets / "serve-0.sock") as client,
        ):
            health = await client.health()
            assert health["engine"] == "hf"
            asked = {"n": 3, "max_tokens": 20, "temperature": 0.9, "seed": 5}
            first = await replicas.generate(Prompt(ids=tuple(PROMPT)), **asked)
            assert first == await replicas.generate(Prompt(ids=tuple(PROMPT)), **asked)
            for one in first:
                expected = tied.logprobs(PROMPT, one.token_ids, temperature=0.9)
                assert np.abs(expected - one.logprobs).max() <= 1e-3

            for version, reference in enumerate((newer, adapted), start=1):
                await replicas.publish(reference.path, version)
                (found,) = await replicas.probe(PROMPT, TOKENS)
                assert np.abs(reference.logprobs(PROMPT, TOKENS) - found).max() <= 1e-3
            with pytest.raises(ConfigError, match="no such directory"):
                await replicas.publish(tmp_path / "gone", 3)
            with pytest.raises(ConfigError, match="no sleep"):
                await client.sleep()

            os.kill(pids.all[0], signal.SIGKILL)
            (again,) = await replicas.generate(
                Prompt(ids=tuple(PROMPT)), n=1, max_tokens=9, temperature=1.0, seed=5
            )
            assert (again.min_version, len(pids.all)) == (2, 2)
            expected = adapted.logprobs(PROMPT, again.token_ids)
            assert np.abs(expected - again.logprobs).max() <= 1e-3
