"""`forge chat` and `forge.solve`: choice of weights, GPUs and engine, and refusals."""

from __future__ import annotations

import io
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import forge
from forge.adapters.subjects import read_source
from forge.commands import chat
from forge.commands.engine_placement import place_on, small
from forge.config.load import load_experiment
from forge.errors import ConfigError, MachineError
from forge.records import Event, PolicyVersion
from forge.runner.plan.machine import Machine, assume
from forge.runner.weights.resume import find_weights
from forge.serve.weights import Weights
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.views.run_state import run_state
from tests.store.storefactory import attempt, write_run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUICKSTART = Path(__file__).parents[2] / "experiments" / "quickstart.toml"
HERE = Machine(cores=2, memory_bytes=1 << 34, free_disk_bytes=1 << 40, gpus=(), engines=frozenset())
NO_TEMPLATE = SimpleNamespace(stop_token_ids=())
FUNCTION = "def f(x):\n    return torch.tanh(x)\n"


def run_with(root: Path, *published: int, start: Weights, adapters: bool = False) -> RunPaths:
    """A run that has published these steps; the weights of step 2 were not kept."""
    records: list = [attempt()]
    data = {"stage": 0, "weights": start.to_json()}
    records.append(Event(at=1.0, kind="stage_start", message="sft-0", data=data))
    for version, step in enumerate(published, start=1):
        path = root / "weights" / f"w{step}"
        if step != 2:
            path.mkdir(parents=True)
            if adapters:
                (path / "adapter_config.json").write_text("{}")
        records.append(
            PolicyVersion(
                version=version, attempt=1, stage=0, step=step, path=str(path),
                sha256="", publish_s=0.0, probe_gap=0.0,
            )
        )  # fmt: skip
    anyio.run(write_run, root, records)
    return RunPaths(root)


@pytest.mark.parametrize(
    ("stdin", "expected"),
    [(None, "stdin: it is closed"), (b"x = '\xff'", "stdin: byte 0xff at 5 is not UTF-8")],
)
def test_a_problem_from_stdin_that_cannot_be_read_is_one_line(
    stdin: bytes | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin))
    monkeypatch.setattr("sys.stdin", stream)
    with pytest.raises(ConfigError, match=expected):
        read_source("-")


def test_a_problem_is_read_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.py").write_text(FUNCTION)
    assert read_source(str(tmp_path / "p.py")) == FUNCTION
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(FUNCTION.encode())))
    assert read_source("-") == FUNCTION
    with pytest.raises(ConfigError, match=r"no\.py: cannot be read: No such file or directory$"):
        read_source("no.py")


def test_the_newest_kept_weights_answer(tmp_path: Path) -> None:
    start = Weights(full=tmp_path / "init")
    paths = run_with(tmp_path / "toy-1", 1, 3, 2, start=start)
    weights = tmp_path / "toy-1" / "weights"
    assert find_weights(paths, "") == Weights(full=weights / "w3", version=2, full_version=2)
    assert find_weights(paths, "1").full == weights / "w1"
    with pytest.raises(ConfigError, match=r"toy-1@2: no weights .*; there are: 1, 3"):
        find_weights(paths, "2")


def test_an_adapter_answers_on_the_checkpoint_it_was_trained_on(tmp_path: Path) -> None:
    base, given = tmp_path / "base", tmp_path / "given"
    base.mkdir()
    given.mkdir()
    start = Weights(full=base, adapter=given)
    paths = run_with(tmp_path / "toy-1", 1, start=start, adapters=True)
    trained = tmp_path / "toy-1" / "weights" / "w1"
    assert find_weights(paths, "") == Weights(full=base, adapter=trained, version=1)
    unpublished = run_with(tmp_path / "toy-2", start=start)
    assert find_weights(unpublished, "") == start
    base.rmdir()
    with pytest.raises(MachineError, match=r"/base: not there; toy-1 needs these weights$"):
        find_weights(paths, "")


def test_a_run_without_a_model_says_so(tmp_path: Path) -> None:
    anyio.run(write_run, tmp_path / "toy-1", [attempt()])
    with pytest.raises(ConfigError, match="toy-1: it has no model yet"):
        find_weights(RunPaths(tmp_path / "toy-1"), "")


async def ask(store_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"await forge\.asolve"):
        forge.solve(FUNCTION, store_dir=store_dir)
    with pytest.raises(ConfigError, match="run"):
        await forge.asolve(FUNCTION, store_dir=store_dir)


def test_solve_in_an_event_loop_names_asolve(tmp_path: Path) -> None:
    anyio.run(ask, tmp_path)


ON_GPUS = (
    "devices.gpus=auto",
    "devices.train=2",
    "devices.serve=2",
    "devices.judge=2",
    "serve.replicas=2",
)


def test_a_chat_takes_one_gpu_for_each_role_of_the_run_except_training(
    tmp_path: Path,
) -> None:
    experiment = small(load_experiment(QUICKSTART, overrides=ON_GPUS))
    placement = place_on(experiment, assume("4xH100-80GB", here=HERE), model_dir=tmp_path)
    assert [[gpu.index for gpu in one] for one in placement.serve] == [[0]]
    assert [gpu.index for gpu in placement.judge] == [1]
    assert (placement.train, placement.engine) == ((), "vllm")
    one = place_on(experiment, assume("1xH100-80GB", here=HERE), model_dir=tmp_path)
    assert one.shared == {"GPU-assumed-0"}
    on_cpu = place_on(experiment, replace(HERE, engines=frozenset({"llama"})), model_dir=tmp_path)
    assert (on_cpu.gpus, on_cpu.engine) == ((), "llama")


@pytest.mark.parametrize(("kind", "engine"), [("llama", "hf"), ("qwen3", "llama")])
def test_a_chat_chooses_the_engine_by_the_type_of_the_model(
    kind: str, engine: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    both = replace(HERE, engines=frozenset({"llama", "hf"}))
    placement = place_on(small(load_experiment(QUICKSTART)), both, model_dir=tmp_path)
    assert placement.engine == engine


class Opened(Exception):
    """Raised at the point where engines would start."""


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_chat_converts_its_model_inside_its_own_store_and_cleans_up(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = tmp_path / "model", []
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": kind}))
    paths = run_with(tmp_path / "toy-1", start=Weights(full=model))
    paths.experiment.write_text(
        f'name = "toy"\n[model]\npath = "{model}"\n[[stage]]\nkind = "eval"\n'
    )

    def open_replicas(table: Any, *, work_dir: Path, **keys: Any) -> None:
        seen.append((table.engine, work_dir.parent, work_dir.is_dir()))
        raise Opened

    @asynccontextmanager
    async def open_pool(*given: Any, **keys: Any) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(chat, "open_replicas", open_replicas)
    monkeypatch.setattr(chat, "open_pool", open_pool)
    monkeypatch.setattr(chat.ChatTemplate, "load", lambda folder: NO_TEMPLATE)
    monkeypatch.setattr(
        chat, "this_machine", lambda *_, **__: replace(HERE, engines=frozenset({"llama", "hf"}))
    )
    with pytest.raises(Opened):
        forge.solve(FUNCTION, run="toy-1", store_dir=tmp_path)
    store = tmp_path / "chats" / "toy-1-1"
    assert seen == [("hf" if kind == "llama" else "llama", store, True)]
    assert not list(store.glob(".chat-*"))
    with open_run(RunPaths(store)) as reader:
        assert run_state(reader) == "failed"


def test_a_run_that_used_a_url_has_no_model_to_ask(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    paths = run_with(tmp_path / "toy-1", start=Weights(full=model))
    paths.experiment.write_text(
        f'name = "toy"\n[model]\npath = "{model}"\n[serve]\nurl = ["http://there"]\n'
        '[[stage]]\nkind = "eval"\n'
    )
    with pytest.raises(ConfigError, match=r"toy-1: its answers came from serve.url = .*there"):
        forge.solve(FUNCTION, run="toy-1", store_dir=tmp_path)
