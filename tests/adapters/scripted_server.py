"""A server with scripted answers to POST /v1/judge, and of a model, for tests of adapters."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from forge.adapters.verdict import Reward, Verdict
from tests.answering import Handler, answering

RIGHT, WRONG, FAULT, HOPELESS, FAST = "right", "wrong", "fault", "hopeless", "fast"
"""Answers, and what the server says about them: an answer is found by its last word."""
VERDICTS = {
    RIGHT: (0.8, {"status": "correct", "compiled": True, "correct": True}),
    FAST: (1.0, {"status": "correct", "compiled": True, "correct": True, "speedup_low": 2.5}),
    WRONG: (0.3, {"status": "wrong", "compiled": True, "correct": False}),
    HOPELESS: (None, {"status": "unjudgeable", "compiled": False, "correct": False}),
}


class ScriptedServer:
    """Requests that it got, and its URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and JSON of an answer."""
        self.bodies.append(body)
        if body["problem"] == "nonesuch":
            return 422, {"error": "problem: nonesuch: no such problem"}
        word = body["answer"].split()[-1]
        if word == FAULT:
            return 503, {"error": "infra_error: zygote_gone: it died"}
        reward, fields = VERDICTS.get(word, VERDICTS[WRONG])
        verdict = Verdict(reason="r", detail="d", feedback=f"judge> {word}", **fields)
        return 200, {"verdict": verdict.to_json(), "reward": Reward(value=reward).to_json()}


def chat_stream(body: dict[str, Any]) -> bytes:
    """A model's reply in OpenAI's format: right after feedback, else its name."""
    text = RIGHT if "judge>" in str(body["messages"][-1]["content"]) else body["model"]
    common = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
    said = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    chunks = [{"choices": [said]}, {"choices": [end]}, {"choices": [], "usage": usage}]
    lines = [f"data: {json.dumps({**common, **chunk})}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    """A server in a thread."""

    class Scripted(Handler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            found.tokens.append(self.headers["Authorization"])
            body = json.loads(self.read())
            if self.path.endswith("/chat/completions"):
                self.send(chat_stream(body), headers={"Content-Type": "text/event-stream"})
            else:
                status, reply = found.answer(body)
                self.answer(reply, status=status)

    with answering(Scripted) as url:
        found = ScriptedServer(url)
        yield found
