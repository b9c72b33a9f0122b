"""The child process that sends one notification: runs the command, posts to the webhook, and ends.

Exits with 0 if both succeed in time, else with 1 and a line for each failure in its log. Processes
that the command leaves behind end with this one, whose group the supervisor kills.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from forge.process.lease import hold_lease

LONGEST_OUTPUT = 64_000
"""Bytes of the command's output that the log keeps."""
LAST_OUTPUT_S = 0.5
"""Wait for the last output of a command; processes that it left behind may hold the pipe open."""


def main() -> None:
    config = hold_lease()
    failures = list(send(config))
    sys.exit("\n".join(failures) if failures else 0)


def send(config: Mapping[str, Any]) -> Iterator[str]:
    """Runs the command and posts to the webhook within `timeout_s`; yields each failure."""
    deadline = time.monotonic() + config["timeout_s"]
    body = json.dumps(config["body"])
    command = _start(config) if config["command"] else None
    if config["webhook"]:
        yield from _post(config["webhook"], body, timeout_s=config["timeout_s"])
    if isinstance(command, str):
        yield command
    elif command is not None:
        yield from _finish(*command, body, deadline=deadline)


def _start(config: Mapping[str, Any]) -> tuple[subprocess.Popen[bytes], threading.Thread] | str:
    """The process and the reader of its output, or why it cannot be started."""
    try:
        output, write_end = os.pipe()
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", config["command"]],
                stdin=subprocess.PIPE,
                stdout=write_end,
                stderr=write_end,
                cwd=config["cwd"],
                env={**os.environ, **config["env"]},
            )
        finally:
            os.close(write_end)
    except OSError as error:
        return f"command: cannot be started: {error.strerror}"
    reader = threading.Thread(target=_copy_output, args=(output,), daemon=True)
    reader.start()
    return process, reader


def _copy_output(output: int) -> None:
    """Copies the first output to the log and drops the rest: a command that prints without end must
    not fill the disk."""
    left = LONGEST_OUTPUT
    while part := os.read(output, 1 << 16):
        os.write(sys.stderr.fileno(), part[:left])
        left -= min(left, len(part))


def _finish(
    process: subprocess.Popen[bytes], reader: threading.Thread, body: str, *, deadline: float
) -> Iterator[str]:
    try:
        process.communicate(body.encode(), timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        yield "command: did not end in time"
        return
    reader.join(LAST_OUTPUT_S)
    if process.returncode:
        yield f"command: exit {process.returncode}"


def _post(url: str, body: str, *, timeout_s: float) -> Iterator[str]:
    """Posts to the webhook. Errors name only the host, since the path of a URL may be secret."""
    import httpx

    try:
        host = httpx.URL(url).host
    except (ValueError, httpx.InvalidURL):
        yield "webhook: its URL is invalid"
        return
    headers = {"Content-Type": "application/json"}
    try:
        # The response body is not read: it may be long or endless.
        with httpx.stream("POST", url, content=body, headers=headers, timeout=timeout_s) as answer:
            if not answer.is_success:
                yield f"webhook at {host}: HTTP {answer.status_code}"
    except (httpx.HTTPError, ValueError) as error:
        yield f"webhook at {host}: {type(error).__name__}"


if __name__ == "__main__":
    main()
