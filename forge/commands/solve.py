"""`forge.solve` and `forge.asolve`: ask a run's model for a kernel from Python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from forge.commands.chat import ChatRequest, achat, chat
from forge.errors import ConfigError

if TYPE_CHECKING:
    from forge.records import Trajectory

Say = Callable[[str], None]


def solve(
    code: str,
    *,
    run: str = "last",
    turns: int = 3,
    store_dir: Path = Path("runs"),
    say: Say | None = None,
) -> Trajectory:
    """Asks a run's model for a kernel that replaces a torch function or solves a problem file.

    Example: `forge.solve(code).turns[-1].code`.

    Raises:
        ConfigError: the run or the text cannot be used, or an event loop is running here; use
            `asolve` there.
    """
    if _has_event_loop():
        raise ConfigError(
            "forge.solve: an event loop is running here, as in Jupyter; use `await forge.asolve()`"
        )
    return chat(ChatRequest(run=run, source=code, turns=turns), store_dir=store_dir, say=say)


async def asolve(
    code: str,
    *,
    run: str = "last",
    turns: int = 3,
    store_dir: Path = Path("runs"),
    say: Say | None = None,
) -> Trajectory:
    """`solve` inside an asyncio event loop in the main thread, such as Jupyter's.

    Example: `(await forge.asolve(code)).turns[-1].code`.
    """
    request = ChatRequest(run=run, source=code, turns=turns)
    return await achat(request, store_dir=store_dir, say=say)


def _has_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
