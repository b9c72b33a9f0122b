"""Oracles, and which of them draw for several problems: on a GPU, contexts are what is scarce.

Called by `references.py` and `gpu_reference.py`. Promises: what one problem's code did to torch
never reaches another's, so an oracle is kept only while all that it ran could leave nothing behind
(`is_contained`); any other has one of its own, which ends with its draw, as does one whose draw
failed. At most `num_kept` are kept; who finds all of them at work waits for one.
"""

from __future__ import annotations

import ast
import re
import select
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.evalpool.judge.sandbox import Isolation
from forge.evalpool.judge.screen import screen
from forge.evalpool.judge.spawner import ZygoteGone

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from forge.evalpool.judge.spawner import SandboxedChild, Spawner
    from forge.records.problem import Problem

MAX_DRAWS = 256
"""Of one oracle: what leaks in a library stays small."""
SWITCHES = re.compile(
    r"\b(set_\w+|register_(?!buffer)\w+|(activate|restore|clear|autocast)_\w+|init_num_threads"
    r"|backends|cuda|autograd|amp|triton)\b"
)
"""What a candidate may name and a later problem would notice: torch's switches, devices, hooks."""


def is_contained(problem: Problem) -> bool:
    """Whether its reference does nothing that outlives it: it passes what is asked of candidates,
    names none of torch's switches, and changes no attributes but those of `self`. To doubt one
    wrongly costs time alone. Not covered: a method called with a class of torch's as its `self`."""
    source = problem.source
    if not screen(source, entry_point=problem.entry_point, needs_kernel=False).is_ok:
        return False
    try:
        tree = ast.parse(source)
        words = ast.unparse(tree)  # names and texts as Python understands them, however written
    except RecursionError:
        return False
    return not SWITCHES.search(words) and not any(map(_reaches_out, ast.walk(tree)))


def _reaches_out(node: ast.AST) -> bool:
    """Whether it may change a class of torch's under another name, or stay in a context."""
    match node:
        case ast.Attribute(value=owner, ctx=ast.Store() | ast.Del()):
            return not _is_self(owner)
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=args):
            return not args or not _is_self(args[0])
        case ast.Name(id="self", ctx=ast.Store()):
            return True
        case ast.With():
            return any(isinstance(one, ast.Yield | ast.YieldFrom) for one in ast.walk(node))
        case ast.AsyncFunctionDef():
            return True
    return False


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


@dataclass(slots=True)
class _Kept:
    child: SandboxedChild
    num_draws: int = 0


class Oracles:
    """One judge's. Safe to call from several threads."""

    def __init__(self, spawner: Spawner, *, uid: int | None, num_kept: int) -> None:
        self._spawner = spawner
        self._uid = uid
        self._num_kept = num_kept
        self._changed = threading.Condition()
        self._idle: list[_Kept] = []
        """The one that worked last is the last."""
        self._num_lent = 0
        """Of those that are kept."""

    @contextmanager
    def lent(self, problem: Problem) -> Iterator[SandboxedChild]:
        """One for a draw of a problem, which may be asked for another once the block has ended
        well. Raises ZygoteGone or WeakSandbox, but not behind a draw that is done: it may hold
        memory of the card that somebody must free."""
        # Without a sandbox a candidate could enter the process that draws for the next one.
        if not is_contained(problem) or self._spawner.isolation is Isolation.NONE:
            child = self._spawner.spawn(role="oracle", uid=self._uid)
            try:
                yield child
            except BaseException as error:
                self._end_failed(child, error)
                raise
            self._end([_Kept(child)])
            return
        kept = self._take()
        try:
            yield kept.child
        except BaseException as error:
            self._give_back(None)
            self._end_failed(kept.child, error)
            raise
        kept.num_draws += 1
        if kept.num_draws < MAX_DRAWS:
            self._give_back(kept)
        else:
            self._give_back(None)
            self._end([kept])

    def clear(self) -> None:
        """Ends those that wait: nobody draws for long, or somebody needs the card's memory."""
        with self._changed:
            idle, self._idle = self._idle, []
        self._end(idle)

    def _take(self) -> _Kept:
        with self._changed:
            self._changed.wait_for(lambda: self._idle or self._num_lent < self._num_kept)
            self._num_lent += 1
            fit = [kept for kept in self._idle if self._is_fit(kept)]
            unfit = [kept for kept in self._idle if kept not in fit]
            taken = fit.pop() if fit else None
            self._idle = fit
        self._end(unfit)
        if taken is not None:
            return taken
        try:
            return _Kept(self._spawner.spawn(role="oracle", uid=self._uid))
        except BaseException:
            self._give_back(None)
            raise

    def _give_back(self, kept: _Kept | None) -> None:
        """None for one that ends."""
        with self._changed:
            self._num_lent -= 1
            if kept is not None:
                self._idle.append(kept)
            self._changed.notify()

    def _is_fit(self, kept: _Kept) -> bool:
        """Not one that has ended, with its zygote or alone: an oracle says nothing unasked."""
        return self._spawner.is_current(kept.child) and not _has_news(kept.child.sock)

    def _end_failed(self, child: SandboxedChild, error: BaseException) -> None:
        """Raises ZygoteGone where it ended with its zygote: no reference is to blame for that."""
        self._spawner.end(child)
        if not self._spawner.is_current(child):
            raise ZygoteGone("an oracle ended with its zygote") from error

    def _end(self, unfit: list[_Kept]) -> None:
        for kept in unfit:
            with suppress(ZygoteGone):
                self._spawner.end(kept.child)


def _has_news(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
