"""The store of a chat: the run that is asked is only read, and every chat is a run of its own."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from forge.commands import chat
from forge.records import Completion, Event, Finish, Prompt, Reason, Status, Verdict
from forge.runner.plan.machine import Machine
from forge.serve.weights import Weights
from forge.store.identity import settle_identity
from forge.store.layout import RunPaths, find_run
from forge.store.ownership import open_run_lock
from forge.store.reader import open_run
from forge.views.show import load_show
from tests.store.storefactory import attempt, group, problem, write_run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HERE = Machine(
    cores=2, memory_bytes=1 << 34, free_disk_bytes=1 << 40, gpus=(), engines=frozenset({"llama"})
)
FUNCTION = "def f(x):\n    return torch.tanh(x)\n"
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
        "TemplatePrompter": Prompter, "this_machine": lambda *_, **__: HERE,
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(chat, name, fake)
    monkeypatch.setattr(
        chat.ChatTemplate, "load", lambda folder: SimpleNamespace(stop_token_ids=())
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
    settle_identity(paths)
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
    assert len(chatted["run_id"]) > 8
    assert {row["purpose"] for row in rows} == {"chat"}
    assert {row["max_version"] for row in rows} == {5}
    assert first.to_json()["store"] == str(first.paths.root)


def test_a_run_can_be_asked_while_it_is_owned(asked: RunPaths) -> None:
    with open_run_lock(asked):
        assert ask(asked).trajectory.turns


def test_chats_go_on_side_by_side(asked: RunPaths) -> None:
    names: list[str] = []

    async def both() -> None:
        async def one() -> None:
            request = chat.ChatRequest(run="toy-1", source=FUNCTION)
            names.append((await chat.achat(request, store_dir=asked.root.parent)).paths.name)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            tasks.start_soon(one)

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


def test_a_store_that_cannot_be_made_is_named(asked: RunPaths) -> None:
    (asked.root.parent / "chats").write_text("a file")
    with pytest.raises(Exception, match=r"chats: cannot make a run directory"):
        ask(asked)
