"""Output of a command and answer of a webhook: neither fills a disk or hides the other."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from forge.runner.outlets.notify import LONGEST_MESSAGE
from forge.runner.outlets.notify_child import LONGEST_OUTPUT, send
from forge.store.layout import RunPaths
from tests.runner.outlets.notifying import Said, events, notified
from tests.store.storefactory import make_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    make_root(tmp_path / "toy-1")
    return RunPaths(tmp_path / "toy-1")


@pytest.mark.anyio
async def test_a_command_that_prints_without_end_fills_no_disk(paths: RunPaths) -> None:
    async with notified(paths, command="yes; exit 0", timeout_s=1.0):
        pass
    assert events(paths)[0][1].endswith("command: did not end in time")
    size = (paths.logs(1) / "notify.log").stat().st_size
    assert LONGEST_OUTPUT <= size < LONGEST_OUTPUT + 1000


@pytest.mark.anyio
async def test_the_last_lines_of_a_command_are_in_its_log_and_event(paths: RunPaths) -> None:
    async with notified(paths, command="echo no such host >&2; exit 1"):
        pass
    message = events(paths)[0][1]
    assert "no such host" in message
    assert message.endswith("command: exit 1")


@pytest.mark.anyio
async def test_the_event_of_a_command_that_prints_garbage_is_printable(paths: RunPaths) -> None:
    console = Said()
    garbage = r"head -c 50000 /dev/zero | tr '\0' '\377'; printf '\033[2J'; exit 1"
    async with notified(paths, console, command=garbage):
        pass
    message = events(paths)[0][1]
    assert message.endswith("command: exit 1")
    assert len(message) < LONGEST_MESSAGE + 100
    assert "\x1b" not in console.lines[0]


@contextmanager
def endless_server() -> Iterator[str]:
    """Answers 200 with a body that never ends."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
                while True:
                    connection.sendall(b"x" * 65536)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/hooks/s3cret"
    finally:
        server.close()
        thread.join()


def config(**keys: Any) -> dict[str, Any]:
    return {"command": None, "webhook": None, "timeout_s": 5.0, "body": {}, "env": {}, **keys}


def test_an_endless_answer_is_not_waited_for() -> None:
    began = time.monotonic()
    with endless_server() as url:
        assert list(send(config(webhook=url))) == []
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("url", ["http://[::s3cret/x", "https://xn--/s3cret"])
def test_an_invalid_url_is_reported_and_the_command_still_runs(tmp_path: Path, url: str) -> None:
    command = f"touch {tmp_path}/message"
    failures = list(send(config(webhook=url, command=command, cwd=str(tmp_path))))
    assert failures == ["webhook: its URL is invalid"]
    assert (tmp_path / "message").exists()


def test_a_command_has_ended_although_it_left_a_process_running(tmp_path: Path) -> None:
    began = time.monotonic()
    failures = list(send(config(command="sleep 4 & exit 0", cwd=str(tmp_path))))
    assert failures == []
    assert time.monotonic() - began < 3
