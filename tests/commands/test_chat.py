"""`forge chat`: weights, GPUs, engine, refusals, and the store of each chat."""

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

from forge.adapters.subjects import read_source
from forge.commands import chat
from forge.commands.serve import place_on, small
from forge.config.load import load_experiment
from forge.errors import ConfigError, MachineError
from forge.records import Completion, Event, Finish, PolicyVersion, Prompt, Reason, Status, Verdict
from forge.runner.plan.machine import Machine, assume
from forge.runner.weights.resume import find_weights
from forge.serve.weights import Weights
from forge.store.layout import RunPaths, find_run, open_run_lock
from forge.store.reader import open_run
from forge.views.run_state import run_state
from forge.views.show import load_show
from tests.store.storefactory import attempt, group, problem, write_run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUICKSTART = Path(__file__).parents[2] / "experiments" / "quickstart.toml"
HERE = Machine(cores=2, memory_bytes=1 << 34, free_disk_bytes=1 << 40, gpus=(), engines=frozenset())


def with_engines(*names: str) -> Machine:
    return replace(HERE, engines=frozenset(names))


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


def test_the_newest_kept_weights_answer(tmp_path: Path) -> None:
    start = Weights(full=tmp_path / "init")
    paths = run_with(tmp_path / "toy-1", 1, 3, 2, start=start)
    weights = tmp_path / "toy-1" / "weights"
    assert find_weights(paths, "") == Weights(full=weights / "w3", version=2, full_version=2)
    assert find_weights(paths, "1").full == weights / "w1"
    with pytest.raises(ConfigError, match=r"toy-1:2: no weights .*; there are: 1, 3"):
        find_weights(paths, "2")
    for kept in weights.iterdir():
        kept.rmdir()
    with pytest.raises(ConfigError, match=r"^toy-1: none of its weights were kept$"):
        find_weights(paths, "")


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


def test_a_chat_takes_one_gpu_for_each_role_of_the_run_except_training(tmp_path: Path) -> None:
    roles = [f"devices.{role}=2" for role in ("train", "serve", "judge")]
    asked = ["devices.gpus=auto", *roles, "serve.replicas=2"]
    experiment = small(load_experiment(QUICKSTART, overrides=asked))
    placement = place_on(experiment, assume("4xH100-80GB", here=HERE), model_dir=tmp_path)
    assert [[gpu.index for gpu in one] for one in placement.serve] == [[0]]
    assert [gpu.index for gpu in placement.judge] == [1]
    assert (placement.train, placement.engine) == ((), "vllm")
    one = place_on(experiment, assume("1xH100-80GB", here=HERE), model_dir=tmp_path)
    assert one.shared == {"GPU-assumed-0"}
    on_cpu = place_on(experiment, with_engines("llama"), model_dir=tmp_path)
    assert (on_cpu.gpus, on_cpu.engine) == ((), "llama")


SIZES = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8,
    "vocab_size": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
}  # fmt: skip


class Opened(Exception):
    """Raised at the point where engines would start."""


@pytest.mark.parametrize("kind", ["afmoe", "qwen3"])
def test_a_chat_converts_its_model_inside_its_own_store_and_cleans_up(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = tmp_path / "model", []
    model.mkdir()
    (model / "config.json").write_text(json.dumps({**SIZES, "model_type": kind}))
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
    monkeypatch.setattr(chat.ChatTemplate, "load", lambda folder, thinking: NO_TEMPLATE)
    monkeypatch.setattr(chat, "this_machine", lambda *_, **__: with_engines("llama", "hf"))
    with pytest.raises(Opened):
        chat.chat(chat.ChatRequest(run="toy-1", source=FUNCTION), store_dir=tmp_path)
    store = tmp_path / "chats" / "toy-1-1"
    assert seen == [("hf" if kind == "afmoe" else "llama", store, True)]
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
        chat.chat(chat.ChatRequest(run="toy-1", source=FUNCTION), store_dir=tmp_path)


CHUNKS = ("one ", "two ", "three")


class Client:
    """An engine's client that answers with CHUNKS."""

    def __init__(self, *given: Any, **keys: Any) -> None: ...

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *raised: object) -> None: ...

    async def stream(self, ids: Any, **keys: Any) -> AsyncIterator[Any]:
        made = Completion(
            token_ids=(7,), logprobs=(-0.1,), finish=Finish.STOP, min_version=5, max_version=5
        )
        for text in CHUNKS:
            is_last = text == CHUNKS[-1]
            yield SimpleNamespace(text=text, completion=made if is_last else None)


class Prompter:
    def __init__(self, **keys: Any) -> None: ...

    def prompt(self, problem: Any, attempts: Any) -> Prompt:
        return Prompt(ids=(1, 2), text="prompt")

    def decode(self, token_ids: Any) -> str:
        return "".join(CHUNKS)

    def extract(self, problem: Any, text: str) -> tuple[str, Reason]:
        return text, Reason.OK

    def feedback(self, verdict: Verdict) -> str:
        return "wrong"


async def judge_wrong(problem: Any, code: str, **options: bool) -> Verdict:
    return Verdict(status=Status.WRONG, reason="mismatch", detail="")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A finished run with weights, logs and groups; engine and judge are fakes."""

    @asynccontextmanager
    async def open_pool(*given: Any, **keys: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(judge=judge_wrong)

    @asynccontextmanager
    async def open_replicas(*given: Any, **keys: Any) -> AsyncIterator[None]:
        yield

    fakes = {
        "open_pool": open_pool, "open_replicas": open_replicas, "ReplicaClient": Client,
        "TemplatePrompter": Prompter, "this_machine": lambda *_, **__: with_engines("llama"),
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(chat, name, fake)
    monkeypatch.setattr(
        chat.ChatTemplate, "load", lambda folder, thinking: SimpleNamespace(stop_token_ids=())
    )
    paths = RunPaths(tmp_path / "toy-1")
    weights = Weights(full=tmp_path / "model", version=5)
    data = {"stage": 0, "weights": weights.to_json()}
    weights.full.mkdir()
    (weights.full / "config.json").write_text('{"model_type": "qwen3"}')
    started = Event(at=1.0, kind="stage_start", message="eval-0", data=data)
    rows = [attempt(), problem(), started, group(0, [[Status.CORRECT]])]
    anyio.run(write_run, paths.root, rows)
    paths.experiment.write_text(
        f'name = "toy"\n[model]\npath = "{weights.full}"\n[[stage]]\nkind = "eval"\n'
    )
    (paths.logs(1) / "supervisor.log").write_text("a line\n")
    return paths


def tree(root: Path) -> dict[str, Any]:
    """Every file of a directory, with its content and time; not what a reader leaves."""
    return {
        str(path.relative_to(root)): (
            path.readlink() if path.is_symlink() else path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(root.rglob("*"))
        if not path.name.endswith(("-wal", "-shm"))
    }


def ask(paths: RunPaths, **keys: Any) -> chat.Chatted:
    request = chat.ChatRequest(run=paths.name, source=FUNCTION, turns=2)
    return chat.chat(request, store_dir=paths.root.parent, **keys)


def test_a_chat_leaves_the_run_as_it_was(asked: RunPaths) -> None:
    before = tree(asked.root)
    with open_run(asked) as reader:
        shown = load_show(reader)
    chatted = ask(asked)
    assert len(chatted.trajectory.turns) == 2
    assert tree(asked.root) == before
    with open_run(asked) as reader:
        assert load_show(reader) == shown
    assert find_run("last", store_dir=asked.root.parent).name == "toy-1"


def test_a_chat_can_be_looked_at_later_with_its_run_and_version(asked: RunPaths) -> None:
    first, second = ask(asked), ask(asked)
    assert [each.paths.name for each in (first, second)] == ["toy-1-1", "toy-1-2"]
    with open_run("last", store_dir=asked.root.parent / "chats") as reader:
        shown = load_show(reader)
        rows = reader.rows("SELECT purpose, problem_id, status, max_version FROM v_turns")
    assert shown["state"] == "done"
    assert shown["counters"]["turns"] == 2
    assert shown["verdicts"] == {"wrong": 2}
    chatted = shown["chat"]
    assert (chatted["run"], chatted["policy_version"]) == ("toy-1", 5)
    assert {row["purpose"] for row in rows} == {"chat"}
    assert {row["max_version"] for row in rows} == {5}
    assert first.to_json()["store"] == str(first.paths.root)


def test_chats_go_on_side_by_side_also_while_the_run_is_owned(asked: RunPaths) -> None:
    names: list[str] = []

    async def both() -> None:
        async def one() -> None:
            request = chat.ChatRequest(run="toy-1", source=FUNCTION)
            names.append((await chat.achat(request, store_dir=asked.root.parent)).paths.name)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            tasks.start_soon(one)

    with open_run_lock(asked):
        anyio.run(both)
    assert sorted(names) == ["toy-1-1", "toy-1-2"]


@pytest.mark.parametrize("num_pieces", [1, 4])
def test_a_chat_cut_off_by_its_reader_leaves_rows_with_a_purpose(
    num_pieces: int, asked: RunPaths
) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) > num_pieces:
            raise BrokenPipeError

    with pytest.raises((BrokenPipeError, BaseExceptionGroup)):
        ask(asked, say=say)
    with open_run("last", store_dir=asked.root.parent / "chats") as reader:
        groups = reader.rows("SELECT purpose, num_rollouts FROM groups")
        purposes = [row["purpose"] for row in reader.rows("SELECT purpose FROM v_turns")]
        ended = reader.one("SELECT exit_code, reason FROM attempts")
    assert groups == [{"purpose": "chat", "num_rollouts": 0}]
    assert set(purposes) <= {"chat"}
    assert ended == {"exit_code": 130, "reason": "the reader of its output went away"}
