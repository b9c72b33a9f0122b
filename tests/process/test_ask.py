"""Requests end with an answer or with an error that names the server: real servers on sockets. Any
bytes of another process give a bounded JSON value or BadJson."""

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forge.errors import ChildDied, Stalled
from forge.process.ask import Answer, error_message, open_client, retry_pause_s, send, send_blocking
from forge.process.server.serving import serve_task
from forge.process.strict_json import MAX_DEPTH, BadJson, parse_json


async def echo(request: Request) -> Response:
    return JSONResponse(await request.json())


async def trickle(_request: Request) -> Response:
    """Sends a byte often enough to satisfy a timeout of each read."""
    from starlette.responses import StreamingResponse

    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await anyio.sleep(0.02)

    return StreamingResponse(chunks())


async def cut(_request: Request) -> Response:
    return Response(b"short", headers={"content-length": "99"})


@asynccontextmanager
async def serving(path: Path, answer: Callable[[Request], Awaitable[Response]]):
    app = Starlette(routes=[Route("/x", answer, methods=["GET", "POST"])])
    async with anyio.create_task_group() as group:
        await group.start(serve_task, app, path)
        yield
        group.cancel_scope.cancel()


async def ask(path: Path, *, timeout_s: float = 5.0) -> Answer:
    async with open_client(path, timeout_s=timeout_s) as client:
        return await send(client, "POST", "/x", {"a": 1}, server="serve-0", timeout_s=timeout_s)


async def ask_in_thread(path: Path, *, timeout_s: float = 5.0):
    request = partial(
        send_blocking, path, "POST", "/x", {"a": 1}, server="serve-0", timeout_s=timeout_s
    )
    return await anyio.to_thread.run_sync(request)


async def test_both_senders_return_the_answer_of_any_status(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", echo):
        assert (await ask(tmp_path / "s")).json() == {"a": 1}
        assert (await ask_in_thread(tmp_path / "s")).content == b'{"a":1}'

    async def refuse(_request: Request) -> Response:
        return JSONResponse({"error": "no"}, 400)

    async with serving(tmp_path / "s", refuse):
        assert (await ask(tmp_path / "s")).status == 400
        assert (await ask_in_thread(tmp_path / "s")).status == 400


async def test_silence_is_an_error_that_names_the_server_and_the_request(tmp_path: Path) -> None:
    async def never(_request: Request) -> Response:
        await anyio.sleep(0.5)  # a server that ends waits for its answers
        return Response(b"too late")

    words = r"serve-0 was silent for 0\.1 s; asked: POST /x"
    async with serving(tmp_path / "s", never):
        for sender in (ask, ask_in_thread):
            with pytest.raises(Stalled, match=words):
                await sender(tmp_path / "s", timeout_s=0.1)


async def test_the_deadline_holds_for_an_answer_that_never_ends(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", trickle):
        with anyio.fail_after(5), pytest.raises(Stalled):
            await ask(tmp_path / "s", timeout_s=0.2)


@pytest.mark.parametrize("answer", [cut, None])
async def test_a_broken_connection_is_an_error_that_names_the_server(
    tmp_path: Path, answer
) -> None:
    async with serving(tmp_path / ("s" if answer else "other"), answer or echo):
        for sender in (ask, ask_in_thread):
            with pytest.raises(ChildDied, match=r"serve-0 hung up; asked: POST /x: .+"):
                await sender(tmp_path / "s")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"error": {"message": "too\\nlong", "type": "t"}}', "too long"),
        (b'{"message": "older", "code": 400}', "older"),
        (b'{"error": "forge"}', "forge"),
        (b"[1]", "[1]"),
        (b"[" * 100_000, "[" * 200),
        (b"", "no message"),
    ],
)
def test_the_message_of_an_error_is_one_line(content: bytes, message: str) -> None:
    assert error_message(content) == message


@pytest.mark.parametrize(
    ("header", "pause_s"),
    [("3", 3.0), ("0", 0.1), ("900", 10.0), ("nan", 0.1), ("Wed, 21 Oct 2026", 1.0), (None, 1.0)],
)
def test_a_full_server_chooses_the_pause_within_bounds(header: str | None, pause_s: float) -> None:
    headers = {} if header is None else {"Retry-After": header}
    answer = Answer(status=503, content=b"", headers=headers)
    assert retry_pause_s(answer, default_s=1.0, longest_s=10.0) == pause_s


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
)  # fmt: skip


def depth(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 0


@given(VALUES)
def test_a_value_survives(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


@given(st.binary() | st.text('[]{}",:\\ue019d8NaInfty- ').map(str.encode))
def test_any_bytes_give_a_value_or_one_error(content: bytes) -> None:
    try:
        value = parse_json(content)
    except BadJson:
        return
    assert depth(value) <= MAX_DEPTH
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * 10_000 + b"]" * 10_000, "nested deeper than 64 levels"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested deeper than 64 levels"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b"[-Infinity]", "-Infinity is no JSON"),
        (b"[1e999]", "1e999 is beyond the range of a float"),
        (b'{"a": 1, "b": 2, "a": 3}', "the key 'a' is there twice"),
        (b'"\xff"', "not UTF-8 at byte 1"),
        (rb'"\ud800"', "half of a surrogate pair"),
        (b"1" * 5000, "not JSON: Exceeds the limit"),
        (b"", "not JSON"),
    ],
)
def test_what_is_refused_is_named(content: bytes, words: str) -> None:
    with pytest.raises(BadJson, match=words):
        parse_json(content)


def test_brackets_in_strings_are_no_levels() -> None:
    text = "[{" * 1000 + '\\"' + "[" * 1000
    assert parse_json(json.dumps([text] * 3).encode()) == [text] * 3
    assert parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)


def test_half_a_surrogate_pair_is_kept_where_asked() -> None:
    assert parse_json(rb'"\ud800"', is_text=False) == "\ud800"
    assert parse_json(rb'"\ud83d\ude00"') == "\N{GRINNING FACE}"


def test_a_large_integer_stays_exact() -> None:
    assert parse_json(str(1 << 70).encode()) == 1 << 70
    assert math.isfinite(parse_json(b"1e308"))
