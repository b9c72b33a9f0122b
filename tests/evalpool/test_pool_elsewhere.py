"""A pool whose judges are on other machines: some may find no room until later."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from forge.config.schema import JudgeTable
from forge.errors import ChildDied, MachineError, NoRoom
from forge.evalpool import keeper
from forge.evalpool.keeper import Link
from forge.evalpool.pool import open_pool
from forge.evalpool.seating import State
from tests.evalpool.scripted_judges import PROBLEM, Script


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "FIRST_BACKOFF_S", 0.01)


class Nodes:
    """Nodes with room for `num_places` judges; the others find none, or another error."""

    def __init__(self, num_places: int, *, error: Exception | None = None) -> None:
        self.num_places = num_places
        self.scripts: dict[str, Script] = {}
        self._error = error or NoRoom("no node has room")

    @asynccontextmanager
    async def open(self, name: str) -> AsyncGenerator[Link]:
        if len(self.scripts) >= self.num_places:
            raise self._error
        script = self.scripts[name] = Script()
        async with script.open() as link:
            yield link


async def test_a_judge_without_room_starts_when_a_node_joins(tmp_path: Path) -> None:
    nodes = Nodes(1)
    elsewhere = [nodes.open, nodes.open]
    async with open_pool(
        JudgeTable(), socket_dir=tmp_path, log_dir=tmp_path, elsewhere=elsewhere
    ) as pool:
        states = [seat.state for seat in pool.seating.seats]
        assert sorted(states) == [State.DOWN, State.UP]
        assert (await pool.judge(PROBLEM, "one")).is_correct
        nodes.num_places = 2
        with anyio.fail_after(5):
            while any(  # noqa: ASYNC110 - seats have no event for tests
                seat.state is not State.UP for seat in pool.seating.seats
            ):
                await anyio.sleep(0.01)
    assert len(nodes.scripts) == 2


@pytest.mark.parametrize(
    ("nodes", "kind", "words"),
    [
        (Nodes(0), MachineError, "^no node has room$"),
        (Nodes(1, error=ChildDied("judge-1 died")), ChildDied, "judge-1 died"),
    ],
)
async def test_no_room_at_all_and_another_error_end_the_pool_in_one_line(
    tmp_path: Path, nodes: Nodes, kind: type[Exception], words: str
) -> None:
    elsewhere = [nodes.open] * 2
    with pytest.raises(ExceptionGroup) as raised:
        async with open_pool(
            JudgeTable(), socket_dir=tmp_path, log_dir=tmp_path, elsewhere=elsewhere
        ):
            pass
    assert raised.group_contains(kind, match=words, depth=None)
