"""The child process that calls the user's function: `python -m forge.scoring.child CONFIG`.

    POST /load {} → {sha256, line}
    POST /score {verdict} → {terms}
    POST /score_group {rollouts: [[verdict]]} → {terms: [[terms]]}
    GET /health → {ok}

An answer of any POST may be {fault: {line, text}} instead. One request at a time: the supervisor
sends the next one after the answer. The function runs in a worker thread, so that /health answers
meanwhile; prints go to the log.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route

from forge.process.lease import hold_lease
from forge.process.server.door import Door, read_object
from forge.process.server.serving import serve
from forge.records import Verdict
from forge.scoring.function import Fault, RewardFunction, load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

MAX_BODY_BYTES = 64 << 20
"""A verdict has at most some kB; a group has hundreds of them."""


def main() -> None:
    """Entry point of the child."""
    config = hold_lease()
    serve(Scoring(config).app(), Path(config["socket_path"]))


class Scoring:
    """The endpoints of one function."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._path, self._name = Path(config["file"]), str(config["function"])
        self._loaded: RewardFunction | None = None
        self._one = anyio.CapacityLimiter(1)

    def app(self) -> Starlette:
        """The application with all routes."""
        posts = {"/load": self.load, "/score": self.score, "/score_group": self.score_group}
        routes = [Route(path, self._answered(f), methods=["POST"]) for path, f in posts.items()]
        return Starlette(
            routes=[*routes, Route("/health", self.health)], middleware=[Middleware(Door)]
        )

    async def health(self, _http: Request) -> JSONResponse:
        """The child is ready to load the function."""
        return JSONResponse({"ok": True})

    def load(self, _body: dict[str, Any]) -> dict[str, Any]:
        """Execute the file."""
        self._loaded = load(self._path, self._name)
        return {"sha256": self._loaded.sha256, "line": self._loaded.line}

    def score(self, body: dict[str, Any]) -> dict[str, Any]:
        """Terms of one verdict."""
        return {"terms": self._function.score(Verdict.from_json(body["verdict"]))}

    def score_group(self, body: dict[str, Any]) -> dict[str, Any]:
        """Terms of all verdicts of a group."""
        rollouts = [[Verdict.from_json(one) for one in row] for row in body["rollouts"]]
        return {"terms": self._function.score_group(rollouts)}

    @property
    def _function(self) -> RewardFunction:
        if self._loaded is None:
            raise RuntimeError("a function is loaded before it is called")
        return self._loaded

    def _answered(self, handler: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
        """A route that runs the handler in a thread and answers with its result or its fault."""

        async def answer(http: Request) -> JSONResponse:
            body = await read_object(http, max_bytes=MAX_BODY_BYTES)
            try:
                found = await anyio.to_thread.run_sync(handler, body, limiter=self._one)
            except Fault as fault:
                found = {"fault": {"line": fault.line, "text": fault.text}}
            return JSONResponse(found)

        return answer


if __name__ == "__main__":
    main()
