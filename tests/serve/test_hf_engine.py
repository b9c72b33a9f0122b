"""The transformers engine: the tokens of llama, refused weights. What it
shares with llama is in test_step_engines.py.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge.errors import ConfigError
from forge.serve.hf.engine import HfEngine, HfSettings
from forge.serve.llama.engine import LlamaEngine
from forge.serve.llama.model import ModelSettings
from tests.serve.conftest import Reference
from tests.serve.damage import (
    ADAPTER,
    ADAPTER_CONFIG,
    LACKING,
    change_config,
    change_tensors,
    truncate,
)
from tests.serve.stepped import gap, request, run

GAP = 1e-4
"""Allowed mean |Δ logprob| in exact mode."""


def make_engine(path: Path, *, num_slots: int = 6, **settings: Any) -> HfEngine:
    values = {"context_tokens": 1280, **settings}
    return HfEngine(HfSettings(model_dir=path, num_slots=num_slots, **values))


def test_llama_and_hf_generate_the_same_tokens_for_a_seed(tied: Reference, tmp_path: Path) -> None:
    asked = [request(40, n=4, seed=3), request(7, n=2, temperature=0.8, top_k=50, top_p=0.9)]
    again = [request(40, n=4, seed=3), request(7, n=2, temperature=0.8, top_k=50, top_p=0.9)]
    settings = ModelSettings(model_dir=tied.path, work_dir=tmp_path, context_tokens=1280)
    llama = LlamaEngine(settings, num_slots=6)
    run(llama, *asked)
    run(make_engine(tied.path), *again)
    for one, other in zip(asked, again, strict=True):
        for sample, twin in zip(one.samples, other.samples, strict=True):
            assert sample.tokens.tolist() == twin.tokens.tolist()
            assert np.abs(sample.logprobs - twin.logprobs).max() <= 1e-3
    llama.close()


FULL: list[Any] = [LACKING, truncate(), change_config(num_hidden_layers=3), shutil.rmtree]
ADAPTERS: list[Any] = [
    change_tensors(lambda tensors: tensors.popitem(), file=ADAPTER),
    truncate(ADAPTER),
    change_config(ADAPTER_CONFIG, peft_type="LOHA"),
    change_config(ADAPTER_CONFIG, r=5),
    change_config(ADAPTER_CONFIG, target_modules=["nowhere"]),
]


@pytest.mark.parametrize("adapted", [False, True])
def test_refused_weights_change_nothing(
    adapted: bool,
    tied: Reference,
    newer: Reference,
    make_adapter: Callable[..., Reference],
    tmp_path: Path,
) -> None:
    engine = make_engine(tied.path)
    served = tied
    if adapted:
        served = make_adapter(tied, r=4)
        engine.load_weights(served.path, version=1)
    sources = [(newer, FULL), (make_adapter(tied, r=8), ADAPTERS)]
    for number, (source, damage) in enumerate((one, how) for one, all in sources for how in all):
        bad = tmp_path / f"bad-{number}"
        shutil.copytree(source.path, bad)
        damage(bad)
        with pytest.raises(ConfigError, match="bad"):
            engine.load_weights(bad, version=9)
        one = request(40)
        run(engine, one)
        assert gap(served, one) <= GAP, f"damage {number}"
        assert engine.status().version == int(adapted)
    good = make_adapter(tied, r=2)
    engine.load_weights(good.path, version=2)
    run(engine, again := request(40))
    assert gap(good, again) <= GAP
