"""One fork server for all tests of the compiler room."""

import importlib.metadata
from collections.abc import Iterator
from typing import cast

import pytest

from forge.evalpool.judge.children.spawner import Spawner
from forge.evalpool.judge.compiler.cache import Cache
from forge.evalpool.judge.compiler.compile import Compiler
from tests.evalpool.compiler.forkserver import ForkServer


@pytest.fixture(scope="session")
def server() -> ForkServer:
    return ForkServer(triton=importlib.metadata.version("triton"))


@pytest.fixture(scope="session")
def compiler(server: ForkServer) -> Iterator[Compiler]:
    """In memory only."""
    opened = Compiler(cast("Spawner", server), cache=Cache(None))
    yield opened
    opened.close()
