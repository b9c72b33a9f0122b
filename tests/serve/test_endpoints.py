"""The endpoints around any engine: answers, refusals and aborts. The engine is a fake."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.config.schema import ServeTable
from forge.data.chat import ChatTemplate
from forge.errors import ConfigError, MachineError, Stalled
from forge.process.ask import JSON_TYPE, open_client
from forge.process.server.serving import serve_task
from forge.process.sockets import open_socket_dir
from forge.records import Completion, Finish, Message
from forge.serve.engine.endpoints import Endpoints, Texts, request_from
from forge.serve.port import SLEEP, Chunk, EngineSample, EngineStatus, Request
from forge.serve.replicas import open_replicas
from forge.serve.weights import Weights
from forge.serve.wire import COMPACT, pack, unpack

BODY = {"prompt": [1, 2, 3], "n": 2, "max_tokens": 4, "seed": 7}
END = "<|im_end|>"
CHAT = {"messages": [{"role": "user", "content": "née"}], "max_tokens": 40, "seed": 1}


class FakeEngine:
    name = "fake"

    def __init__(self, *, features: frozenset[str] = frozenset({SLEEP})):
        self.features = features
        self.now = EngineStatus(version=3, kv_use=0.25)
        self.does: list[str] = []
        self.error: Exception | None = None
        self.is_silent = False
        self.begun, self.ended = anyio.Event(), anyio.Event()
        """Set by a silent engine."""

    async def check(self, request: Request) -> None:
        request.check(num_vocab=100, context_tokens=64)

    async def generate(
        self, request: Request, *, on_chunk: Callable[[Chunk], None] | None = None
    ) -> None:
        await self.check(request)
        if self.error is not None:
            raise self.error
        if self.is_silent:
            self.begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                self.does.append("abort")
                self.ended.set()
        count = request.max_tokens
        request.samples = [
            EngineSample(
                request,
                index,
                tokens=np.arange(count, dtype=np.int32),
                logprobs=np.linspace(-2, -1, count, dtype=np.float32),
                versions=np.full(count, self.now.version),
                finish=Finish.LENGTH,
            )
            for index in range(request.n)
        ]
        for one in request.samples if on_chunk else ():
            assert on_chunk is not None
            on_chunk(Chunk(index=one.index, token_ids=one.tokens.tolist(), finish=one.finish))

    async def score(self, prompt: np.ndarray, completion: np.ndarray) -> list[float]:
        return [-1.0] * completion.size

    async def load_weights(self, path: Path, *, version: int) -> None:
        if self.error is not None:
            raise self.error
        self.does.append(f"load {path} {version}")

    async def sleep(self) -> None:
        self.does.append("sleep")

    async def wake(self) -> None:
        self.does.append("wake")

    def status(self) -> EngineStatus:
        return self.now


def endpoints(engine: FakeEngine) -> Endpoints:
    return Endpoints(engine, texts=Texts(Path("/nowhere")), stop=(), context_tokens=64)


def client(engine: FakeEngine) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(endpoints(engine).app(), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://forge")


async def test_the_same_answer_comes_as_json_and_compact() -> None:
    async with client(FakeEngine()) as http:
        spelled = await http.post("/v1/completions", json=BODY)
        packed = await http.post("/v1/completions", json=BODY, headers={"Accept": COMPACT})
    assert packed.headers["content-type"] == COMPACT
    choices = spelled.json()["choices"]
    for one, told in zip(unpack(packed.content), choices, strict=True):
        assert list(one.token_ids) == told["token_ids"] == [0, 1, 2, 3]
        assert one.logprobs == pytest.approx(told["logprobs"]["token_logprobs"])
        assert (one.min_version, one.max_version, one.finish) == (3, 3, "length")


async def test_health_answers_with_numbers_engine_and_features() -> None:
    async with client(FakeEngine()) as http:
        said = (await http.get("/health")).json()
    assert (said["ok"], said["engine"], said["version"]) == (True, "fake", 3)
    assert (said["kv_use"], said["features"]) == (0.25, ["sleep"])


@pytest.mark.parametrize(
    ("error", "status"), [(ConfigError("a\nb"), 400), (MachineError("m"), 503), (Stalled("s"), 503)]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/weights"])
async def test_an_error_is_one_line_with_its_status(
    error: Exception, status: int, path: str
) -> None:
    engine = FakeEngine()
    engine.error = error
    body = BODY if path == "/v1/completions" else {"path": "/a", "version": 4}
    async with client(engine) as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == status
    assert "\n" not in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/completions", "{", "not JSON"),
        ("/v1/completions", "[]", "a JSON object is needed"),
        ("/v1/completions", json.dumps({**BODY, "prompt": [1.5]}), "prompt"),
        ("/v1/completions", json.dumps({**BODY, "prompt": [100]}), "allowed is 0 to 99"),
        ("/v1/completions", json.dumps({**BODY, "prompt": [2**70]}), "64 bits"),
        ("/v1/completions", json.dumps({**BODY, "max_token": 3}), "unknown field"),
        ("/v1/completions", json.dumps({**BODY, "stream": True, "n": 0}), "n: found 0"),
        ("/score", json.dumps({"prompt_ids": [1]}), "completion_ids"),
        ("/v1/chat/completions", json.dumps({"messages": []}), "messages"),
    ],
)
async def test_an_invalid_body_is_refused_with_400(path: str, body: str, said: str) -> None:
    async with client(FakeEngine()) as http:
        answer = await http.post(path, content=body, headers=JSON_TYPE)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


async def test_a_sleeping_engine_answers_health_and_wake_only() -> None:
    engine = FakeEngine()
    async with client(engine) as http:
        assert (await http.post("/sleep", json={})).status_code == 200
        assert (await http.post("/sleep", json={})).status_code == 200
        for path, body in (
            ("/v1/completions", BODY),
            ("/score", {"prompt_ids": [1], "completion_ids": [1]}),
            ("/weights", {"path": "/a", "version": 4}),
        ):
            refused = await http.post(path, json=body)
            assert refused.status_code == 503
            assert "sleeps" in refused.json()["error"]["message"]
        assert (await http.get("/health")).json()["is_asleep"] is True
        assert (await http.post("/wake", json={})).status_code == 200
        assert (await http.post("/wake", json={})).status_code == 200
        assert (await http.post("/v1/completions", json=BODY)).status_code == 200
    assert engine.does == ["sleep", "wake"], "a second call has no effect"


async def test_sleep_waits_for_an_engine_that_still_aborts() -> None:
    engine = FakeEngine()
    engine.now = EngineStatus(version=0, running=1)

    async def abort() -> None:
        await anyio.sleep(0.1)
        engine.now = EngineStatus(version=0)

    async with client(engine) as http, anyio.create_task_group() as tasks:
        tasks.start_soon(abort)
        assert (await http.post("/sleep", json={})).status_code == 200
        assert (await http.get("/health")).json()["running"] == 0
    assert engine.does == ["sleep"]


async def test_an_engine_sleeps_only_when_idle_and_able(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge.serve.engine.endpoints.ABORTED_S", 0.05)
    busy, unable = FakeEngine(), FakeEngine(features=frozenset())
    busy.now = EngineStatus(version=0, running=1, waiting=2)
    for engine, status, said in ((busy, 503, "3 samples"), (unable, 400, "no sleep")):
        async with client(engine) as http:
            answer = await http.post("/sleep", json={})
        assert answer.status_code == status
        assert said in answer.json()["error"]["message"]
        assert engine.does == []


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_hangs_up_has_its_request_aborted(
    streams: bool, tmp_path: Path
) -> None:
    engine = FakeEngine()
    engine.is_silent = True
    body = json.dumps({**BODY, "stream": streams}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: forge\r\nContent-Type: application/json"
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve_task, endpoints(engine).app(), tmp_path / "s")
        with anyio.fail_after(5):
            async with await anyio.connect_unix(tmp_path / "s") as connection:
                length = f"Content-Length: {len(body)}"
                await connection.send(f"{head}\r\n{length}\r\n\r\n".encode() + body)
                await engine.begun.wait()
                assert engine.does == []
            await engine.ended.wait()
        tasks.cancel_scope.cancel()
    assert engine.does == ["abort"]


@given(st.dictionaries(
    st.sampled_from(["n", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop_token_ids"]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    | st.lists(st.integers(), max_size=2) | st.sampled_from([10**400, -(10**400)]),
))  # fmt: skip
def test_any_body_gives_a_request_or_a_config_error(body: dict[str, Any]) -> None:
    try:
        found = request_from(body, prompt=np.array([1, 2]), stop=())
        found.check(num_vocab=100, context_tokens=64)
    except ConfigError:
        return
    assert found.n >= 1


SWITCH = "{%- if not enable_thinking | default(true) %}<think>\n\n</think>\n\n{% endif %}"


async def test_chat_renders_like_training_and_streams_the_same_text(
    talking: Path, tmp_path: Path
) -> None:
    with (talking / "chat_template.jinja").open("a") as file:
        file.write("{%- if add_generation_prompt %}" + SWITCH + "{% endif %}")
    table = ServeTable(slots=2, context_tokens=256)
    with open_socket_dir() as sockets, anyio.fail_after(60):
        async with (
            open_replicas(
                table,
                weights=Weights(full=talking),
                stop_token_ids=(),
                socket_dir=sockets,
                log_dir=tmp_path,
                work_dir=tmp_path,
                thinking="",
            ),
            open_client(sockets / "serve-0.sock", timeout_s=20) as http,
        ):
            whole = (await http.post("/v1/chat/completions", json=CHAT)).json()
            stream = await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    template, asked = ChatTemplate.load(talking, thinking=""), [Message(role="user", content="née")]
    rendered = template.render(asked, add_generation_prompt=True)
    assert len(rendered) > len(ChatTemplate.load(talking).render(asked, add_generation_prompt=True))
    (choice,) = whole["choices"]
    assert whole["usage"]["prompt_tokens"] == len(rendered)
    assert choice["message"]["content"] == template.decode(choice["token_ids"])
    events: list[Any] = [
        json.loads(line.removeprefix("data: "))
        for line in stream.text.splitlines()
        if line.startswith("data: {")
    ]
    deltas = [event["choices"][0]["delta"]["content"] for event in events if "choices" in event]
    assert "".join(deltas) == choice["message"]["content"]
    assert stream.text.endswith("data: [DONE]\n\n")


IDS = st.integers(0, 2**32 - 1)
LOGPROBS = st.floats(max_value=0, width=32, allow_nan=False)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    ids = draw(st.lists(IDS, max_size=40))
    return Completion(
        token_ids=tuple(ids),
        logprobs=tuple(draw(st.lists(LOGPROBS, min_size=len(ids), max_size=len(ids)))),
        finish=draw(st.sampled_from(Finish)),
        min_version=draw(st.integers(0, 2**40)),
        max_version=draw(st.integers(0, 2**40)),
    )


@given(st.lists(completions(), min_size=1, max_size=3), st.data())
def test_an_answer_with_missing_or_extra_bytes_is_damaged(
    ones: list[Completion], data: st.DataObject
) -> None:
    content = pack(ones)
    cut = data.draw(st.integers(0, len(content) - 1))
    for damaged in (content[:cut], content + b"\0"):
        with pytest.raises(MachineError, match="damaged"):
            unpack(damaged)


@given(st.binary(max_size=200))
def test_any_bytes_raise_machine_error_only(content: bytes) -> None:
    for tried in (content, b"FS1\0" + content):
        with pytest.raises(MachineError):
            unpack(tried)
