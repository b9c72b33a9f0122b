"""Arguments for vLLM, and the checks of directories before it loads them; without vLLM."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.errors import ConfigError
from forge.serve.engine.rows import sample_seed
from forge.serve.port import Request
from forge.serve.vllm import engine
from tests.serve.conftest import Reference
from tests.serve.damage import (
    ADAPTER_CONFIG,
    LACKING,
    OF_ANOTHER_SHAPE,
    WITH_ANOTHER,
    Damage,
    change_config,
    truncate,
)


def config_of(reference: Reference, **fields: Any) -> dict[str, Any]:
    config = {
        "model_dir": str(reference.path),
        "context_tokens": 1024,
        "slots": 64,
        "precision": "fast",
        "memory_share": 0.4,
        "tensor_parallel": 2,
        "eager": True,
        "max_lora_rank": 0,
        "shared_gpus": [],
        "seed": 3,
    }
    return {**config, **fields}


def test_settings_of_the_experiment_reach_vllm(tied: Reference) -> None:
    arguments = engine.engine_arguments(engine.read_settings(config_of(tied)))
    expected = {
        "model": str(tied.path),
        "dtype": "bfloat16",
        "max_num_seqs": 64,
        "gpu_memory_utilization": 0.4,
        "tensor_parallel_size": 2,
        "enforce_eager": True,
        "seed": 3,
        "enable_sleep_mode": False,
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
    }
    assert expected.items() <= arguments.items()
    assert "enable_lora" not in arguments
    assert "async_scheduling" not in arguments
    exact = engine.engine_arguments(engine.read_settings(config_of(tied, precision="exact")))
    assert exact["dtype"] == "float32"


def test_a_score_of_the_whole_context_fits(tied: Reference) -> None:
    """vLLM needs room for a token after the last; beyond the model's length only with its own
    variable."""
    shorter, full = (
        engine.read_settings(config_of(tied, context_tokens=tokens)) for tokens in (2047, 2048)
    )
    assert engine.engine_arguments(shorter)["max_model_len"] == 2048
    assert engine.engine_arguments(full)["max_model_len"] == 2049
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN" not in engine.environment(shorter)
    assert engine.environment(full)["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] == "1"
    with pytest.raises(ConfigError, match=r"2049: .* knows 2048 positions"):
        engine.read_settings(config_of(tied, context_tokens=2049))


def test_a_shared_gpu_means_turns_and_sleep(tied: Reference) -> None:
    shared = config_of(tied, shared_gpus=["GPU-a"], tensor_parallel=1)
    arguments = engine.engine_arguments(engine.read_settings(shared))
    assert arguments["async_scheduling"] is False
    assert arguments["enable_sleep_mode"] is True
    with pytest.raises(ConfigError, match="tensor_parallel"):
        engine.read_settings({**shared, "tensor_parallel": 2})


@pytest.mark.parametrize(("rank", "room"), [(1, 8), (8, 8), (9, 16), (64, 64), (500, 512)])
def test_adapters_get_the_smallest_rank_that_holds_them(
    rank: int, room: int, tied: Reference
) -> None:
    arguments = engine.engine_arguments(engine.read_settings(config_of(tied, max_lora_rank=rank)))
    assert (arguments["enable_lora"], arguments["max_lora_rank"]) == (True, room)
    assert arguments["max_cpu_loras"] >= arguments["max_loras"] >= 2


def test_a_rank_beyond_vllms_is_refused() -> None:
    with pytest.raises(ConfigError, match="513: vllm serves up to 512"):
        engine.lora_rank(513)


def test_a_request_becomes_sampling_parameters() -> None:
    request = Request(
        prompt=np.arange(4), n=3, max_tokens=7, temperature=0.6, seed=11, top_p=0.9, top_k=20,
        stop_token_ids=(5, 6),
    )  # fmt: skip
    first, second = (engine.sampling_arguments(request, index) for index in (0, 1))
    expected = {
        "n": 1, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "max_tokens": 7,
        "stop_token_ids": [5, 6], "ignore_eos": True, "logprobs": 0, "detokenize": False,
    }  # fmt: skip
    assert expected.items() <= first.items()
    assert first["seed"] != second["seed"]
    assert {**first, "seed": 0} == {**second, "seed": 0}


@given(st.integers(0, 2**64 - 1), st.integers(0, 4095))
def test_seeds_fit_63_bits_and_neighbours_differ(seed: int, index: int) -> None:
    found = sample_seed(seed, index)
    assert 0 <= found < 2**63
    assert found == sample_seed(seed, index)
    assert found not in {sample_seed(seed, index + 1), sample_seed(seed + 1, index)}
    assert sample_seed(seed, 1) != sample_seed(seed + 1, 0)


def test_the_sampled_tokens_log_probability_is_read_from_either_form() -> None:
    flat = SimpleNamespace(start_indices=[0, 1, 3], logprobs=[-1.0, -2.0, -9.0, -3.0])
    tables = [{7: SimpleNamespace(logprob=-1.0), 8: SimpleNamespace(logprob=-9.0)}]
    assert engine.sampled_logprobs(flat) == [-1.0, -2.0, -3.0]
    assert engine.sampled_logprobs(tables) == [-1.0]


def test_the_schedulers_newest_numbers_are_kept() -> None:
    counters = engine.Counters()
    engine.note_step(counters, SimpleNamespace(num_running_reqs=4, kv_cache_usage=0.5))
    engine.note_step(counters, SimpleNamespace(num_running_reqs=2, kv_cache_usage=0.25))
    engine.note_step(counters, None)
    assert counters == engine.Counters(running=2, kv_use=0.25)


# -- directories -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shutil.rmtree, "no such directory"),
        (LACKING, "1 tensors missing, the first is model.norm.weight"),
        (WITH_ANOTHER, "1 tensors have no place, the first is surplus"),
        (OF_ANOTHER_SHAPE, "model.norm.weight is .3., .64. is served"),
        (truncate(), "model.safetensors"),
    ],
)
def test_an_unfit_checkpoint_never_reaches_vllm(
    damage: Damage, said: str, tied: Reference, newer: Reference, tmp_path: Path
) -> None:
    shutil.copytree(newer.path, tmp_path / "bad")
    damage(tmp_path / "bad")
    with pytest.raises(ConfigError, match=said):
        engine.check_weights(
            tmp_path / "bad", served=engine.checkpoint_shapes(tied.path), max_lora_rank=0
        )


@pytest.mark.parametrize(
    ("fields", "room", "said"),
    [
        ({}, 0, "without room for adapters"),
        ({}, 4, "rank 8; the engine has room for 4"),
        ({"peft_type": "LOHA"}, 8, "peft_type is 'LOHA'"),
        ({"r": None}, 8, "r is None"),
        ({"use_dora": True}, 8, "use_dora"),
        ({"rank_pattern": {"q_proj": 4}}, 8, "rank_pattern"),
    ],
)
def test_an_unfit_adapter_never_reaches_vllm(
    fields: dict[str, Any],
    room: int,
    said: str,
    tied: Reference,
    make_adapter: Callable[..., Reference],
    tmp_path: Path,
) -> None:
    path = tmp_path / "bad"
    shutil.copytree(make_adapter(tied, r=8).path, path)
    change_config(ADAPTER_CONFIG, **fields)(path)
    with pytest.raises(ConfigError, match=said):
        engine.check_weights(path, served=engine.checkpoint_shapes(tied.path), max_lora_rank=room)
