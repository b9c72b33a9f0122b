"""The judge's side of a harvest's work: a child a request. Promise: whatever a problem's code does,
there is an answer before the deadline: the child's, or the reason of its end."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.words import SIGNALS, clean, is_out_of_memory, without_paths
from forge.evalpool.judge.children.spawner import Spawner

MAX_WORDS = 300
NETWORK = frozenset({"URLError", "gaierror", "ConnectionError", "ConnectionRefusedError"})
"""Kinds of errors of a reference that downloads, in a sandbox without a network."""
NETWORK_WORDS = re.compile(r"no internet connection|couldn't connect to")
"""Words of libraries that say the same by an error of another kind."""


def ask_harvester(
    spawner: Spawner, request: Mapping[str, Any], *, limit_s: float
) -> dict[str, Any]:
    """The result of a child under `done`, or the reason of its failure under `failed`, with
    `detail`. Raises ZygoteGone."""
    child = spawner.spawn(role="harvester", source=str(request["source"]))
    is_ended = False
    try:
        frames.send(child.sock, Kind.CALL, dict(request))
        answer = frames.receive(
            child.sock, deadline=time.monotonic() + limit_s, expected=(Kind.DONE, Kind.FAILED)
        )
        if answer.kind is Kind.DONE:
            if not _is_result(answer.body, request):
                return _failed("crash", "something else than the harvester wrote its result")
            return {"done": answer.body}
        kind, message = str(answer.body.get("type")), str(answer.body.get("message"))
        if is_out_of_memory(f"{kind}: {message}"):
            return _failed("out of memory")
        if kind == "TooSlow":
            return _failed("too slow", f"more than {request['cpu_s']:.0f} s of processor time")
        if kind == "Unjudgeable":
            return _failed(*re.split("[;:,] *", message, maxsplit=1))
        if kind in NETWORK or NETWORK_WORDS.search(message):
            return _failed("asks the network", message)
        return _failed(f"raises {kind}", message)
    except frames.DeadlinePassed:
        return _failed("too slow", f"no end within {limit_s:.0f} s")
    except frames.FrameError:
        return _failed("crash", "something else than the harvester wrote on its channel")
    except frames.PeerGone:
        is_ended = True
        ending = spawner.ended(child)
        if ending.is_out_of_memory:
            return _failed("out of memory")
        if os.WIFSIGNALED(ending.status):
            number = os.WTERMSIG(ending.status)
            return _failed("crash", SIGNALS.get(number, f"signal {number}"))
        code = os.waitstatus_to_exitcode(ending.status)
        return _failed("ended its process", f"exit {code}")
    finally:
        if not is_ended:
            spawner.end(child)


def _is_result(body: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    """True for what `child.py` sends; a problem's code may have sent anything."""
    if request["step"] == "answer":
        texts, lists = ("code", "policy"), ("kernels",)
        if body.get("is_answered") is not True:
            texts, lists = ("reason", "detail"), ()
        elif type(body.get("products")) is not int:
            return False
        return all(_is_text(body.get(name)) for name in texts) and all(
            isinstance(body.get(name), list) and all(map(_is_text, body[name])) for name in lists
        )
    groups, seconds = request["groups"], body.get("cpu_s")
    large = groups[body["group"]]["large"] if _is_place(body.get("group"), groups) else ()
    return (
        _is_place(body.get("text"), [request["source"], *request["alternatives"]])
        and all(type(body.get(name)) is int for name in ("tensors", "outputs", "operations"))
        and isinstance(seconds, int | float)
        and ("group" not in body or _is_place(body["group"], groups))
        and ("large" not in body or _is_place(body["large"], large))
    )


def _is_text(value: Any) -> bool:
    """True for text without halves of characters, which no file takes."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _is_place(value: Any, of: Sequence[Any]) -> bool:
    return type(value) is int and 0 <= value < len(of)


def _failed(reason: str, detail: str = "") -> dict[str, Any]:
    words = clean(without_paths(detail), limit=MAX_WORDS).replace("\n", " ")
    return {"failed": clean(reason, limit=80), "detail": words}
