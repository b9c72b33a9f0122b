"""Two replicas on one real card: prompts stay where their prefix is, a killed one costs no answer,
and the card's memory is free once they have ended.

Run on a machine with a GPU and vLLM in this interpreter, or in the one that FORGE_VLLM_PYTHON
names: `python -m pytest tests/serve/test_gpu_replicas.py -m gpu -s` (about 3 min).
"""

import os
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from forge.config.schema import ServeTable
from forge.errors import MachineError
from forge.process.devices import Gpu, inventory, occupancies
from forge.process.sockets import open_socket_dir
from forge.records import Prompt
from forge.serve.engines import check_engine
from forge.serve.replicas import Replicas, open_replicas
from forge.serve.weights import Weights
from tests.serve.conftest import Reference
from tests.serve.observed import Lives

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(500)]
FREE_WITHIN_S = 10.0
SLACK_BYTES = 300 << 20
"""Tolerance for what other processes allocate on the GPU meanwhile."""
PYTHON = os.environ.get("FORGE_VLLM_PYTHON")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with a shape that vLLM has kernels for."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
        head_dim=64, intermediate_size=1024, vocab_size=2048, max_position_embeddings=4096,
        tie_word_embeddings=True,
    )  # fmt: skip
    path = tmp_path / "model"
    Qwen3ForCausalLM(config).bfloat16().save_pretrained(path)
    return path


def free_bytes(gpu: Gpu) -> int:
    return occupancies([gpu])[gpu.uuid].free_bytes


def seconds_until_free(gpu: Gpu, wanted: int) -> float:
    began = time.monotonic()
    while free_bytes(gpu) < wanted - SLACK_BYTES:
        assert time.monotonic() - began < FREE_WITHIN_S, f"{free_bytes(gpu)} of {wanted} are free"
        time.sleep(0.1)
    return time.monotonic() - began


async def ask_all(replicas: Replicas, *, num_prompts: int, n: int, tokens: int) -> dict[int, int]:
    """Generate single samples of prompts that share their first 256 tokens. Returns the number of
    tokens by prompt."""
    got: dict[int, int] = defaultdict(int)

    async def ask(number: int, seed: int) -> None:
        prompt = [*range(256), *([1000 + number] * 256)]
        for one in await replicas.generate(
            Prompt(ids=tuple(prompt)), n=1, max_tokens=tokens, temperature=1.0, seed=seed
        ):
            got[number] += len(one.token_ids)

    async with anyio.create_task_group() as group:
        for number in range(num_prompts):
            for seed in range(n):
                group.start_soon(ask, number, seed)
    return got


def skip_without(table: ServeTable, gpu: Gpu) -> None:
    try:
        check_engine(table, gpus=[gpu])
    except MachineError as error:
        pytest.skip(str(error))


async def test_two_vllm_replicas_share_a_gpu_and_free_it_at_the_end(
    model: Path, tmp_path: Path
) -> None:
    gpu = inventory()[0]
    values: dict[str, Any] = {"python": Path(PYTHON)} if PYTHON else {}
    table = ServeTable(
        engine="vllm", replicas=2, slots=64, context_tokens=2048, precision="fast",
        memory_share=0.2, eager=True, **values,
    )  # fmt: skip
    skip_without(table, gpu)
    before, lives = free_bytes(gpu), Lives()
    with open_socket_dir() as sockets, anyio.fail_after(450):
        async with open_replicas(
            table, weights=Weights(full=model), stop_token_ids=(), socket_dir=sockets,
            log_dir=tmp_path / "logs", work_dir=tmp_path / "work", observer=lives,
            gpus=[(gpu.uuid,), (gpu.uuid,)],
        ) as replicas:  # fmt: skip
            assert "prefix_cache" in replicas.features
            assert free_bytes(gpu) < before - (1 << 30), "they use the GPU"
            got = await ask_all(replicas, num_prompts=8, n=8, tokens=64)
            assert dict(got) == dict.fromkeys(range(8), 8 * 64)
            began = time.monotonic()
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: ask_all(replicas, num_prompts=8, n=8, tokens=512))
                await anyio.sleep(0.2)
                os.kill(lives.pids["serve-0"][0], signal.SIGKILL)
            asked_s = time.monotonic() - began
            assert replicas.stats().generated_tokens == 64 * (64 + 512), "no token counts twice"
            while not all(replica.is_up for replica in replicas.all):  # noqa: ASYNC110
                await anyio.sleep(0.2)
            assert replicas.stats().num_restarts == 1
            back_s = time.monotonic() - began
            load = replicas.load()
            assert load.slots == 128
    free_s = seconds_until_free(gpu, before)
    print(  # noqa: T201 - for bench/RESULTS.md
        f"killed replica: answers after {asked_s:.1f} s, back after {back_s:.1f} s; "
        f"card free {free_s:.1f} s after the end"
    )


async def test_a_llama_built_for_gpus_equals_one_on_the_cpu_and_loads_new_weights(
    tied: Reference, newer: Reference, tmp_path: Path
) -> None:
    """Runs only after `make setup LLAMA=cuda`."""
    gpu, tokens = inventory()[0], list(range(50, 90))
    table = ServeTable(engine="llama", slots=8, context_tokens=512, precision="exact")
    skip_without(table, gpu)
    before = free_bytes(gpu)
    with open_socket_dir() as sockets, anyio.fail_after(200):
        async with open_replicas(
            table, weights=Weights(full=tied.path), stop_token_ids=(), socket_dir=sockets,
            log_dir=tmp_path / "logs", work_dir=tmp_path / "work", gpus=[(gpu.uuid,)],
        ) as replicas:  # fmt: skip
            assert free_bytes(gpu) < before, "it uses the GPU"
            for version, reference in enumerate((tied, newer)):
                if version:
                    await replicas.publish(reference.path, version)
                (found,) = await replicas.probe([1, 2, 3], tokens)
                # Tensor cores round the factors of an f32 product to TF32.
                gap = np.abs(reference.logprobs([1, 2, 3], tokens) - found).mean()
                assert gap <= 5e-3
    seconds_until_free(gpu, before)
