"""The child process that tells a person once: runs the command, posts to the webhook, and ends.

Exit 0 where both were done in time, else 1 with a line each in its log. What the command leaves
running ends with this process, whose group the supervisor sweeps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from forge.process.lease import hold_lease


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


def _start(config: Mapping[str, Any]) -> subprocess.Popen[bytes] | str:
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", config["command"]],
            stdin=subprocess.PIPE,
            cwd=config["cwd"],
            env={**os.environ, **config["env"]},
        )
    except OSError as error:
        return f"command: cannot be started: {error.strerror}"


def _finish(process: subprocess.Popen[bytes], body: str, *, deadline: float) -> Iterator[str]:
    try:
        process.communicate(body.encode(), timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        yield "command: did not end in time"
        return
    if process.returncode:
        yield f"command: exit {process.returncode}"


def _post(url: str, body: str, *, timeout_s: float) -> Iterator[str]:
    """A URL's path may be its secret: errors name the host."""
    import httpx

    host = httpx.URL(url).host
    try:
        answer = httpx.post(
            url, content=body, headers={"Content-Type": "application/json"}, timeout=timeout_s
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        yield f"webhook at {host}: {type(error).__name__}"
        return
    if not answer.is_success:
        yield f"webhook at {host}: HTTP {answer.status_code}"


if __name__ == "__main__":
    main()
