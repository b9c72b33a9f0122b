"""The user's function: the child process that loads it from a file, calls it and checks its result.

    load ── the file is executed once ──▶ RewardFunction ── score(verdict) ──▶ terms
                                                       └── score_group(rollouts) ──▶ terms of each

    POST /load {} → {sha256, line}
    POST /score {verdict} → {terms}
    POST /score_group {rollouts: [[verdict]]} → {terms: [[terms]]}
    GET /health → {ok}

Promise: whatever the function does within this process (raise, exit, return anything, fork) ends as
checked terms or as a Fault with a line of the user's file. A copy of this process that the function
forks, and that returns from it, ends there.

An answer of any POST may be {fault: {line, text}} instead. One request at a time: the supervisor
sends the next one after the answer. The function runs in a worker thread, so that /health answers
meanwhile; prints go to the log.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from forge.process.lease import hold_lease
from forge.process.server.door import Door, Refused, read_object
from forge.process.server.serving import serve
from forge.records import Verdict

T = TypeVar("T")

MODULE = "forge_reward_function"
"""Name of the user's file as a module, which shadows no other."""
TERM = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
TERM_RULE = "1 to 64 letters, digits, _ . -, starting with a letter or _"
MAX_TERMS = 64
LONGEST_TEXT = 300
"""Maximum characters of a message of the user's code."""
MAX_BODY_BYTES = 64 << 20
"""A verdict has at most some kB; a group has hundreds of them."""


class Fault(Exception):
    """A fault of the user's code: a line of its file, and one line of text."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line, self.text = line, text


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFunction:
    path: Path
    name: str
    call: Callable[[Any], Any]
    sha256: str
    """Hash of the bytes that were executed, without the files that they import."""
    line: int

    def score(self, verdict: Verdict) -> dict[str, float]:
        """Terms of one verdict. Raises Fault."""
        return self._terms(self._guarded(lambda: self.call(verdict)), where="")

    def score_group(self, rollouts: Sequence[Sequence[Verdict]]) -> list[list[dict[str, float]]]:
        """Terms of each verdict of a group, by rollout and turn. Raises Fault."""
        given = [list(verdicts) for verdicts in rollouts]
        found = self._list(self._guarded(lambda: self.call(given)), len(rollouts), "rollout", "")
        return [
            [
                self._terms(terms, where=f" for rollout {i}, turn {j}")
                for j, terms in enumerate(
                    self._list(row, len(rollouts[i]), "turn", f" for rollout {i}")
                )
            ]
            for i, row in enumerate(found)
        ]

    def _guarded(self, call: Callable[[], T]) -> T:
        return guarded(call, self.path, line=self.line, name=self.name)

    def _list(self, found: Any, size: int, unit: str, where: str) -> list[Any]:
        if not isinstance(found, list | tuple):
            raise self._fault(f"{_named(found)}{where}; a list with one entry for each {unit}")
        entries = list(cast("Sequence[Any]", found))
        if len(entries) != size:
            raise self._fault(f"{len(entries)} entries{where}; one for each {unit}, {size} here")
        return entries

    def _terms(self, found: Any, *, where: str) -> dict[str, float]:
        if not isinstance(found, dict):
            raise self._fault(f"{_named(found)}{where}; a dict from names of terms to numbers")
        given = cast("dict[Any, Any]", found)
        if len(given) > MAX_TERMS:
            raise self._fault(f"{len(given)} terms{where}; at most {MAX_TERMS}")
        terms: dict[str, float] = {}
        for name, value in given.items():
            if not (isinstance(name, str) and TERM.fullmatch(name)):
                raise self._fault(f"a term named {_short(name)}{where}; {TERM_RULE}")
            terms[name] = self._number(name, value, where)
        if not math.isfinite(sum(terms.values())):
            raise self._fault(f"terms whose sum is not finite{where}; a finite reward")
        return terms

    def _number(self, name: str, value: Any, where: str) -> float:
        if not isinstance(value, Real):
            raise self._fault(f'{_named(value)} as "{name}"{where}; a number')
        try:
            number = float(value)
        except (OverflowError, ValueError, TypeError) as error:
            raise self._fault(f'no float as "{name}"{where} ({error}); a finite number') from error
        if not math.isfinite(number):
            raise self._fault(f'{number} as "{name}"{where}; a finite number')
        return number

    def _fault(self, found: str) -> Fault:
        return Fault(self.line, f"{self.name} returned {found}")


def load(path: Path, name: str) -> RewardFunction:
    """Execute the file and take its function `name`. Raises Fault.

    The file's folder is the last entry of sys.path: it can import its neighbours, and a neighbour
    named like an installed module shadows nothing.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Fault(1, f"cannot be read: {error.strerror}") from error
    try:
        code: CodeType = compile(content, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise Fault(line, f"{type(error).__name__}: {_one_line(error)}") from error
    module = ModuleType(MODULE)
    module.__file__ = str(path)
    sys.modules[MODULE] = module
    sys.path.append(str(path.parent))
    guarded(lambda: exec(code, module.__dict__), path, line=1, name="the file")
    found = getattr(module, name, None)
    if found is None:
        raise Fault(1, f'defines no "{name}"; the function that reward.function names')
    if not callable(found):
        raise Fault(1, f'"{name}" is {_named(found)}; a function')
    return RewardFunction(
        path=path, name=name, call=found, line=_first_line(found, path),
        sha256=hashlib.sha256(content).hexdigest(),
    )  # fmt: skip


def guarded(call: Callable[[], T], path: Path, *, line: int, name: str) -> T:
    """Result of a call of the user's code. Raises Fault for whatever it raises, SystemExit
    included; a process that it forked ends here."""
    owner = os.getpid()
    try:
        result = call()
    except BaseException as error:
        if os.getpid() != owner:
            os._exit(1)
        at = _line_of(error, path) or line
        raise Fault(at, f"{name} raised {type(error).__name__}: {_one_line(error)}") from error
    if os.getpid() != owner:
        os._exit(0)
    return result


def _line_of(error: BaseException, path: Path) -> int:
    """The innermost line of the user's file in a traceback; 0 if it is in none."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno or 0 for f in reversed(frames) if f.filename == str(path)), 0)


def _first_line(found: Any, path: Path) -> int:
    code = getattr(found, "__code__", None)
    if isinstance(code, CodeType) and code.co_filename == str(path):
        return code.co_firstlineno
    return 1


def _named(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _short(value: Any) -> str:
    return repr(value)[:80] if isinstance(value, str | int | float) else _named(value)


def _one_line(error: BaseException) -> str:
    """The message of an exception of the user's code, whose `str` may itself fail."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        return "(no message)"
    return text[:LONGEST_TEXT] or "(no message)"


def main() -> None:
    config = hold_lease()
    serve(Scoring(config).app(), Path(config["socket_path"]))


class Scoring:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self._path, self._name = Path(config["file"]), str(config["function"])
        self._loaded: RewardFunction | None = None
        self._one = anyio.CapacityLimiter(1)

    def app(self) -> Starlette:
        posts = {"/load": self.load, "/score": self.score, "/score_group": self.score_group}
        routes = [Route(path, self._answered(f), methods=["POST"]) for path, f in posts.items()]
        return Starlette(
            routes=[*routes, Route("/health", self.health)], middleware=[Middleware(Door)]
        )

    async def health(self, _http: Request) -> JSONResponse:
        return JSONResponse({"ok": True})

    def load(self, _body: dict[str, Any]) -> dict[str, Any]:
        self._loaded = load(self._path, self._name)
        return {"sha256": self._loaded.sha256, "line": self._loaded.line}

    def score(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"terms": self._function.score(_verdict(body.get("verdict")))}

    def score_group(self, body: dict[str, Any]) -> dict[str, Any]:
        rollouts = [[_verdict(one) for one in _list(row)] for row in _list(body.get("rollouts"))]
        return {"terms": self._function.score_group(rollouts)}

    @property
    def _function(self) -> RewardFunction:
        if self._loaded is None:
            raise Refused(400, "no function is loaded; POST /load first")
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


def _verdict(found: Any) -> Verdict:
    """A verdict from JSON. Raises Refused."""
    try:
        return Verdict.from_json(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused(400, f"verdict: {type(error).__name__}: {_one_line(error)}") from error


def _list(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise Refused(400, f"rollouts: found {_named(found)}; a list of lists of verdicts")
    return cast("list[Any]", found)


if __name__ == "__main__":
    main()
