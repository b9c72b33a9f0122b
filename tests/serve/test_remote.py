"""`[serve] url`: a real engine of forge behind a URL, and fakes of other servers."""

import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import forge.serve.remote as remote_module
from forge.config.schema import ServeTable
from forge.data.server_chat import PlainChat
from forge.errors import ConfigError, MachineError, Stalled
from forge.process.ask import error_message
from forge.process.server.serving import serve_task
from forge.process.sockets import open_socket_dir
from forge.records import Message, Prompt
from forge.serve.remote import Dialect, Remote, open_remote, read_chat, read_packed
from forge.serve.replica import ReplicaClient
from forge.serve.replicas import open_replicas
from forge.serve.weights import Weights
from tests.serve.conftest import Reference
from tests.serve.observed import until

PROMPT = list(range(30))
ASKED = Prompt(
    ids=tuple(PROMPT), messages=(Message(role="user", content="".join(map(chr, PROMPT))),)
)
HOW: dict[str, Any] = {"max_tokens": 12, "temperature": 0.7}


class Letters:
    """A ChatPort whose tokens are characters."""

    stop_token_ids: Sequence[int] = (7,)

    def encode_plain(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


class Server:
    """A fake server: its answers, and the requests it got."""

    def __init__(self, path: Path, *, models: Sequence[tuple[str, str]]) -> None:
        self.url = f"unix:{path}"
        self.path = path
        self.bodies: dict[str, list[dict[str, Any]]] = {}
        self.answers: dict[str, Callable[[dict[str, Any]], Response]] = {}
        self.headers: list[str] = []
        data = [{"id": name, "owned_by": owner} for name, owner in models]
        self.models = JSONResponse({"object": "list", "data": data})

    def app(self) -> Starlette:
        async def post(request: Request) -> Response:
            path, body = request.url.path, await request.json()
            self.bodies.setdefault(path, []).append(body)
            self.headers.append(request.headers.get("authorization", ""))
            if path not in self.answers:
                return JSONResponse({"detail": "Not Found"}, status_code=404)
            return self.answers[path](body)

        async def get(_request: Request) -> Response:
            return self.models

        return Starlette(
            routes=[Route("/v1/models", get), Route("/{path:path}", post, methods=["POST"])]
        )


@asynccontextmanager
async def running(*servers: Server) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        for server in servers:
            await group.start(serve_task, server.app(), server.path)
        yield
        group.cancel_scope.cancel()


@asynccontextmanager
async def connected(
    *urls: str, said: list[str] | None = None, **values: Any
) -> AsyncIterator[Remote]:
    say = ([] if said is None else said).append
    table = ServeTable(url=list(urls), **values)
    with anyio.fail_after(60):
        async with open_remote(table, chat=Letters(), say=say) as remote:
            yield remote


def like_chat(body: dict[str, Any]) -> Response:
    text = f"{body['messages'][0]['content']}{body['seed']}"
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    return JSONResponse({"choices": [{**choice, "finish_reason": "stop"}]})


REASONED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "apart": ({"reasoning_content": "\nso\n", "content": "an answer"}, "stop", "think",
              "<think>\nso\n</think>\n\nan answer"),
    "another name and tag": ({"reasoning": "so", "content": "b"}, "stop", "reason",
                             "<reason>\nso\n</reason>\n\nb"),
    "cut": ({"reasoning_content": "so and", "content": None}, "length", "think",
            "<think>\nso and"),
    "without a tag": ({"reasoning_content": "so", "content": "b"}, "stop", "", "b"),
    "none": ({"reasoning_content": None, "content": "<think>\nx</think>b"}, "stop", "think",
             "<think>\nx</think>b"),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONED)
def test_thinking_that_a_chat_server_sends_apart_gets_its_tag(name: str) -> None:
    message, finish, tag, expected = REASONED[name]
    choice = {"index": 0, "message": message, "finish_reason": finish}
    texts: list[str] = []

    def encode(text: str, is_ended: bool) -> list[int]:
        texts.append(text)
        return [int(is_ended)]

    content = json.dumps({"choices": [choice]}).encode()
    found = read_chat(content, encode=encode, thinking=tag)
    assert texts == [expected]
    assert found.token_ids == (int(finish == "stop"),)


@pytest.mark.parametrize(
    ("usage", "num_tokens"),
    [
        ({"completion_tokens": 7}, 7),
        (None, 3),
        ({"completion_tokens": "many"}, 3),
        ({}, 3),
        ([7], 3),
        ("7", 3),
        ({"completion_tokens": -1}, 3),
        ({"completion_tokens": 10**30}, 3),
    ],
)
def test_the_tokens_of_an_answer_are_those_that_its_server_counts(
    usage: Any, num_tokens: int
) -> None:
    choice = {"index": 0, "message": {"content": "abc"}, "finish_reason": "stop"}
    content = json.dumps({"choices": [choice], "usage": usage}).encode()
    found = read_chat(content, encode=lambda text, _is_ended: [ord(each) for each in text])
    assert found.num_tokens == num_tokens


async def ask(remote: Remote, *, n: int = 2, seed: int = 3) -> list[Any]:
    return await remote.generate(ASKED, n=n, seed=seed, **HOW)


@pytest.mark.slow
async def test_a_forge_engine_behind_a_url_gives_the_same_completions(
    tied: Reference, tmp_path: Path
) -> None:
    table = ServeTable(slots=4, context_tokens=256)
    with open_socket_dir() as sockets, anyio.fail_after(60):
        async with open_replicas(
            table, weights=Weights(full=tied.path), stop_token_ids=(), socket_dir=sockets,
            log_dir=tmp_path / "logs", work_dir=tmp_path / "work",
        ):  # fmt: skip
            socket = sockets / "serve-0.sock"
            async with ReplicaClient(socket) as client:
                here = await client.complete(PROMPT, n=2, seed=3, stop_token_ids=(7,), **HOW)
            async with connected(f"unix:{socket}") as remote:
                assert remote.all[0].dialect is Dialect.FORGE
                assert await ask(remote) == here
                num_tokens = sum(len(one.token_ids) for one in here)
                assert remote.stats().generated_tokens == num_tokens


async def test_without_a_tokenizer_every_server_is_asked_by_messages(tmp_path: Path) -> None:
    server = Server(tmp_path / "s", models=[("qwen", "vllm")])
    server.answers["/v1/chat/completions"] = like_chat
    chat, said = PlainChat("think"), list[str]()
    table = ServeTable(url=[server.url])
    async with (
        running(server),
        open_remote(table, chat=chat, say=said.append, by_messages=True) as remote,
    ):
        assert remote.all[0].dialect is Dialect.CHAT
        prompt = chat.prompt([Message(role="user", content="né")])
        (answer,) = await remote.generate(prompt, n=1, seed=4, **HOW)
    assert (chat.decode(answer.token_ids), len(prompt.ids)) == ("né4", 2)
    assert server.bodies.keys() == {"/v1/chat/completions"}
    assert "is asked by messages" in said[0]


async def test_a_chat_server_gets_messages_and_its_text_is_tokenized_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newer(body: dict[str, Any]) -> Response:
        if "max_tokens" in body:
            said = "Unsupported parameter: use 'max_completion_tokens' instead."
            return JSONResponse({"error": {"message": said}}, status_code=400)
        assert body["max_completion_tokens"] == 12
        return like_chat(body)

    monkeypatch.setenv("SOME_KEY", "sesame")
    server = Server(tmp_path / "s", models=[("a", "x"), ("b", "x")])
    server.answers["/v1/chat/completions"] = newer
    async with (
        running(server),
        connected(f"{server.url}", model_name="b", api_key_env="SOME_KEY") as remote,
    ):
        assert remote.all[0].dialect is Dialect.CHAT
        first, second = await ask(remote)
        text = "".join(map(chr, PROMPT))
        assert "".join(map(chr, first.token_ids)) == f"{text}3\x07"
        assert "".join(map(chr, second.token_ids)) == f"{text}4\x07", "another seed each"
        assert first.logprobs == ()
        await ask(remote)
        limits = [sorted(body)[0] for body in server.bodies["/v1/chat/completions"]]
        assert limits.count("max_completion_tokens") == 4, "two, asked again, and two at once"
        assert server.bodies["/v1/chat/completions"][-1]["model"] == "b"
        assert set(server.headers) == {"Bearer sesame"}


async def test_a_busy_server_is_asked_again_and_a_dead_ones_requests_go_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "BUSY_PAUSE_S", 0.01)
    monkeypatch.setattr(remote_module, "PROBE_EVERY_S", 0.05)
    first = Server(tmp_path / "a", models=[("qwen", "vllm")])
    second = Server(tmp_path / "b", models=[("qwen", "vllm")])
    refusals = iter([429, 503])

    def busy(body: dict[str, Any]) -> Response:
        status = next(refusals, 200)
        return like_chat(body) if status == 200 else Response(status_code=status)

    first.answers["/v1/chat/completions"] = second.answers["/v1/chat/completions"] = like_chat
    until_it_ends = anyio.CancelScope()

    async def run_first(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        with until_it_ends:
            await serve_task(first.app(), first.path, task_status=task_status)

    async with running(second), anyio.create_task_group() as group:
        await group.start(run_first)
        async with connected(first.url, second.url) as remote:
            first.answers["/v1/chat/completions"] = busy
            await ask(remote)
            assert len(first.bodies["/v1/chat/completions"]) == 4, "two refusals, two samples"
            until_it_ends.cancel()
            await until(lambda: not first.path.exists())
            assert len(await ask(remote)) == 2
            assert not remote.all[0].is_up
            assert remote.stats().generated_tokens == 4 * (len(PROMPT) + 2)
            async with running(first):
                await until(lambda: remote.all[0].is_up)
            assert remote.stats().num_restarts == 1


async def test_a_silent_server_gets_no_request_until_it_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "PROBE_EVERY_S", 0.05)
    monkeypatch.setattr(remote_module, "SHORT_TIMEOUT_S", 0.5)
    server = Server(tmp_path / "s", models=[("qwen", "vllm")])
    server.answers["/v1/chat/completions"] = like_chat
    until_it_ends = anyio.CancelScope()

    async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        with until_it_ends:
            await serve_task(server.app(), server.path, task_status=task_status)

    async with anyio.create_task_group() as group:
        await group.start(run)
        async with connected(server.url, request_timeout_s=1.0) as remote:
            until_it_ends.cancel()
            await until(lambda: not server.path.exists())
            async with await anyio.create_unix_listener(server.path):  # accepts, never answers
                with pytest.raises(Stalled):
                    await ask(remote)
                assert not remote.all[0].is_up
            server.path.unlink(missing_ok=True)
            async with running(server):
                await until(lambda: remote.all[0].is_up)
                assert len(await ask(remote)) == 2


async def test_an_unusable_server_is_one_line_before_anything_is_sampled(tmp_path: Path) -> None:
    server = Server(tmp_path / "s", models=[("a", "x"), ("b", "x")])
    absent = f"unix:{tmp_path / 'absent'}"
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ConfigError, f"serve.model_name is absent, and {server.url} has: a, b", {}),
        (ConfigError, f'serve.model_name: found "c"; {server.url} has: a, b', {"model_name": "c"}),
        (
            ConfigError,
            'serve.api_key_env: found "NO_KEY", which is not set',
            {"api_key_env": "NO_KEY"},
        ),
    ]
    assert "NO_KEY" not in os.environ
    async with running(server):
        for kind, said, values in cases:
            with pytest.raises(kind) as raised:
                async with connected(server.url, **values):
                    pytest.fail("it was opened")
            assert str(raised.value).startswith(said)
        server.models = JSONResponse({"error": {"message": "no key"}}, status_code=401)
        with pytest.raises(ConfigError, match=r"no key; serve\.api_key_env names"):
            async with connected(server.url):
                pytest.fail("it was opened")
    with pytest.raises(MachineError, match=r"serve.url: no engine answers: unix:.*absent hung up"):
        async with connected(absent):
            pytest.fail("it was opened")


async def test_a_refusal_ends_the_evaluation_with_the_servers_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "FIRST_PAUSE_S", 0.01)
    server = Server(tmp_path / "s", models=[("qwen", "vllm")])
    server.answers["/v1/chat/completions"] = like_chat
    async with running(server), connected(server.url) as remote:
        said = "This model's maximum context length is 10 tokens."
        server.answers["/v1/chat/completions"] = lambda _body: JSONResponse(
            {"object": "error", "message": said, "code": 400}, status_code=400
        )
        with pytest.raises(ConfigError, match=f"400: {said}"):
            await ask(remote)
        server.answers["/v1/chat/completions"] = lambda _body: JSONResponse({"choices": [{}]})
        with pytest.raises(MachineError, match="its answer is not in the chat format"):
            await ask(remote)


@pytest.mark.parametrize(
    "failure",
    [JSONResponse({"choices": [{}]}), *map(Response, ["", ""], [429, 500]), Response(b"<html>")],
)
async def test_a_server_that_chats_and_fails_is_asked_again_and_says_why_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Response
) -> None:
    for name in ("FIRST_PAUSE_S", "BUSY_PAUSE_S"):
        monkeypatch.setattr(remote_module, name, 0.01)
    said: list[str] = []
    server = Server(tmp_path / "s", models=[("qwen", "vllm")])
    server.answers["/v1/chat/completions"] = like_chat
    async with running(server), connected(server.url, said=said) as remote:
        left = [failure, failure]
        server.answers["/v1/chat/completions"] = lambda body: (
            left.pop() if left else like_chat(body)
        )
        assert len(await ask(remote, n=1)) == 1
        assert left == []
    assert sum("asked again" in line for line in said) == 1


async def test_a_gateway_timeout_is_not_repeated(tmp_path: Path) -> None:
    server = Server(tmp_path / "s", models=[("qwen", "vllm")])
    server.answers["/v1/chat/completions"] = like_chat
    async with running(server), connected(server.url) as remote:
        server.answers["/v1/chat/completions"] = lambda _body: Response(status_code=504)
        with pytest.raises(Stalled, match="504"):
            await ask(remote)
    assert len(server.bodies["/v1/chat/completions"]) == 2, "one for each sample"


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "message", "content", "finish_reason", "error"]
        ),
        inner,
        max_size=4,
    ),
).map(lambda found: json.dumps(found).encode()))  # fmt: skip
def test_any_answer_becomes_completions_or_a_one_line_error(content: bytes) -> None:
    with suppress(MachineError):
        assert len(read_packed(content, n=1)) == 1
    with suppress(MachineError):
        read_chat(content, encode=lambda _text, _is_ended: [])
    assert "\n" not in error_message(content)
