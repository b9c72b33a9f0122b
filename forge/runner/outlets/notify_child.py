"""The child process that tells a person once: runs the command, posts to the webhook, and ends.

Exit 0 where both were done in time, else 1 with a line each in its log. What the command leaves
running ends with this process, whose group the supervisor sweeps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from forge.process.lease import hold_lease

LONGEST_OUTPUT = 64_000
"""Bytes of what a command prints that its log keeps."""
LAST_WORDS_S = 0.5
"""For what it printed at its end; what it left running may hold its output open."""


def main() -> None:
    """Entry point of the child."""
    config = hold_lease()
    failures = list(tell(config))
    sys.stderr.writelines(f"{line}\n" for line in failures)
    sys.exit(1 if failures else 0)


def tell(config: Mapping[str, Any]) -> Iterator[str]:
    """Does what the config asks within its `timeout_s`; yields what went wrong."""
    deadline = time.monotonic() + config["timeout_s"]
    body = json.dumps(config["body"])
    command = _start(config) if config["command"] else None
    if config["webhook"]:
        yield from _post(config["webhook"], body, timeout_s=config["timeout_s"])
    if isinstance(command, str):
        yield command
    elif command is not None:
        yield from _finish(command, body, deadline=deadline)


class _Started(NamedTuple):
    process: subprocess.Popen[bytes]
    keeper: threading.Thread


def _start(config: Mapping[str, Any]) -> _Started | str:
    try:
        output, words = os.pipe()
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", config["command"]],
                stdin=subprocess.PIPE,
                stdout=words,
                stderr=words,
                cwd=config["cwd"],
                env={**os.environ, **config["env"]},
            )
        finally:
            os.close(words)
    except OSError as error:
        return f"command: cannot be started: {error.strerror}"
    keeper = threading.Thread(target=_keep, args=(output,), daemon=True)
    keeper.start()
    return _Started(process, keeper)


def _keep(output: int) -> None:
    """The first words go to the log, and all others nowhere: a command that prints without end
    must not fill the run's disk.
    """
    left = LONGEST_OUTPUT
    while part := os.read(output, 1 << 16):
        os.write(sys.stderr.fileno(), part[:left])
        left -= min(left, len(part))


def _finish(started: _Started, body: str, *, deadline: float) -> Iterator[str]:
    process = started.process
    try:
        process.communicate(body.encode(), timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        yield "command: did not end in time"
        return
    started.keeper.join(LAST_WORDS_S)
    if process.returncode:
        yield f"command: exit {process.returncode}"


def _post(url: str, body: str, *, timeout_s: float) -> Iterator[str]:
    """A URL's path may be its secret: errors name the host."""
    import httpx

    try:
        host = httpx.URL(url).host
    except (ValueError, httpx.InvalidURL):
        yield "webhook: its URL is none"
        return
    headers = {"Content-Type": "application/json"}
    try:
        # The body is not read: it may be long, or never end.
        with httpx.stream("POST", url, content=body, headers=headers, timeout=timeout_s) as answer:
            if not answer.is_success:
                yield f"webhook at {host}: HTTP {answer.status_code}"
    except (httpx.HTTPError, ValueError) as error:
        yield f"webhook at {host}: {type(error).__name__}"


if __name__ == "__main__":
    main()
