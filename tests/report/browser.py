"""A headless Chromium that reports a page's console, its network requests, and values of
expressions.

Speaks DevTools' protocol over Chromium's pipe (`--remote-debugging-pipe`): JSON messages, each
ended by a NUL. Tests that need it skip if there is no Chromium.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ANSWER_S = 30.0
COMPLAINTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._buffer = b""
        self._last_id = 0
        self._session = ""
        self.complaints: list[str] = []
        """Console messages, errors included."""
        self.requests: list[str] = []
        self._events: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command and returns its result."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path: Path, *, width: int, height: int = 900, is_dark: bool = False) -> None:
        """Loads a file at this width, in CSS pixels."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self._events:
            self._next()

    def value(self, expression: str) -> Any:
        """Value of a JavaScript expression, as JSON."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self) -> bytes:
        """The visible page, as PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_S
        while b"\0" not in self._buffer:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self._read_fd], [], [], left)[0], "Chromium was silent"
            part = os.read(self._read_fd, 1 << 20)
            assert part, "Chromium has ended"
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        method = message.get("method", "")
        self._events.append(method)
        if method in COMPLAINTS:
            self.complaints.append(json.dumps(message["params"]))
        if method == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        return message


@contextmanager
def open_page(program: str, profile: Path) -> Iterator[Page]:
    """A Chromium of our own, ended by its pid."""
    to_browser, from_us = os.pipe()
    from_browser, to_us = os.pipe()
    argv = [
        program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
    ]  # fmt: skip
    # The pipe is descriptors 3 and 4 of Chromium.
    bash = 'exec "$@" 3<&"$IN" 4>&"$OUT"'
    process = subprocess.Popen(
        ["bash", "-c", bash, "bash", *argv],
        env={**os.environ, "IN": str(to_browser), "OUT": str(to_us)},
        pass_fds=(to_browser, to_us),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(to_us)
    try:
        yield Page(from_browser, from_us)
    finally:
        process.kill()
        process.wait(timeout=10)
        os.close(from_us)
        os.close(from_browser)
