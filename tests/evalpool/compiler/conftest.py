"""One compiler for all tests of the room, over the judge's own spawner; its children are noted."""

from collections.abc import Iterator
from typing import Any

import pytest

from forge.evalpool.judge.children.spawner import Spawner
from forge.evalpool.judge.compiler.compile import Cache, Compiler
from tests.evalpool.benches import Bench


@pytest.fixture(scope="session")
def spawned() -> Iterator[list[int]]:
    """Process ids of the compiler's children so far."""
    pids: list[int] = []
    spawn = Spawner.spawn

    def noted(self: Spawner, *, role: str, **more: Any) -> Any:
        child = spawn(self, role=role, **more)
        if role == "compiler":
            pids.append(child.pid_here)
        return child

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spawner, "spawn", noted)  # not of the instance, which would hide later ones
        yield pids


@pytest.fixture(scope="session")
def compiler(bench: Bench, spawned: list[int]) -> Iterator[Compiler]:
    """In memory only."""
    opened = Compiler(bench.spawner, cache=Cache(None))
    yield opened
    opened.close()
