"""One generate over several servers, of which some are lost or fail; and the restarts."""

from typing import Any

import anyio
import pytest

import forge.serve.served
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled
from forge.process.busy import BusyClock
from forge.records import Completion, Finish, Prompt
from forge.serve.replica import Restarts
from forge.serve.served import SampleRequest, Served

HOW: dict[str, Any] = {"max_tokens": 4, "temperature": 1.0, "seed": 0}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forge.serve.served, "RETRY_PAUSE_S", 0.001)


class Fake:
    """Answers immediately, unless set to wait or to fail."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.load = self.generated_tokens = self.num_deaths = self.num_asked = 0
        self.is_up = True
        self.busy = BusyClock()
        self.errors: list[ForgeError] = []
        self.go_on = anyio.Event()
        self.go_on.set()

    async def complete(self, request: SampleRequest) -> list[Completion]:
        self.num_asked += 1
        await self.go_on.wait()
        if self.errors:
            raise self.errors.pop()
        one = Completion(
            token_ids=(1, 2, 3), logprobs=(-1.0,) * 3, finish=Finish.LENGTH,
            min_version=0, max_version=0,
        )  # fmt: skip
        return [one] * request.n

    def wait(self) -> anyio.Event:
        """Answer nothing until the event is set."""
        self.go_on = anyio.Event()
        return self.go_on


def served(*fakes: Fake, wait_s: float = 5.0) -> Served:
    return Served(fakes, stop_token_ids=(), slots=4, wait_s=wait_s)


async def test_simultaneous_requests_are_spread_over_the_servers() -> None:
    fakes = [Fake(name) for name in "abcd"]
    all_of_them = served(*fakes)
    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(lambda: all_of_them.generate(Prompt(ids=(1,)), n=1, **HOW))
    assert [fake.num_asked for fake in fakes] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (ChildDied("a hung up, and is back"), (2, 0)),
        (Stalled("a was silent to the end"), (1, 1)),
        (MachineError("a: the engine failed: out of memory"), (1, 1)),
    ],
)
async def test_a_lost_servers_request_goes_to_one_that_is_up(
    error: ForgeError, asked: tuple[int, int]
) -> None:
    a, b = Fake("a"), Fake("b")
    a.errors = [error]
    both = served(a, b)
    (one,) = await both.generate(Prompt(ids=(1,)), n=1, **HOW)
    assert one.token_ids == (1, 2, 3)
    assert (a.num_asked, b.num_asked) == asked
    assert both.stats().generated_tokens == 3


async def test_a_single_server_that_failed_is_asked_again() -> None:
    a = Fake("a")
    a.errors = [MachineError("a: the engine failed, and is back")]
    (one,) = await served(a).generate(Prompt(ids=(1,)), n=1, **HOW)
    assert (a.num_asked, one.token_ids) == (2, (1, 2, 3))


async def test_a_refused_request_is_not_sent_to_another_server() -> None:
    a, b = Fake("a"), Fake("b")
    a.errors = [ConfigError("too long")]
    with pytest.raises(ConfigError, match="too long"):
        await served(a, b).generate(Prompt(ids=(1,)), n=1, **HOW)
    assert b.num_asked == 0


@pytest.mark.parametrize("kind", [ChildDied, MachineError])
async def test_a_request_that_is_lost_every_time_raises_the_last_error(
    kind: type[ForgeError],
) -> None:
    a = Fake("a")
    a.errors = [kind(f"{n}") for n in range(9)]
    with pytest.raises(kind):
        await served(a).generate(Prompt(ids=(1,)), n=1, **HOW)
    assert a.num_asked == forge.serve.served.ATTEMPTS


async def test_a_cancelled_request_leaves_no_load() -> None:
    a, b = Fake("a"), Fake("b")
    a.wait()
    b.wait()
    both = served(a, b)
    with anyio.move_on_after(0.05):
        await both.generate(Prompt(ids=(1,)), n=3, **HOW)
    assert a.num_asked + b.num_asked == 1
    assert a.load == b.load == 0


async def test_requests_wait_while_held_and_while_no_server_is_up() -> None:
    a = Fake("a")
    one = served(a, wait_s=0.2)
    one.hold()
    answers: list[Completion] = []

    async def ask() -> None:
        answers.extend(await one.generate(Prompt(ids=(1,)), n=1, **HOW))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.sleep(0.3)
        assert a.num_asked == 0, "held for longer than a server may take to come up"
        one.release()
    assert len(answers) == 1
    a.is_up = False
    with pytest.raises(Stalled, match=r"no replica came up within 0 s; waited for: a"):
        await one.generate(Prompt(ids=(1,)), n=1, **HOW)
    one._wait_s = 30.0
    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.sleep(0.05)
        a.is_up = True
        one.note_up()
    assert len(answers) == 2


def test_deaths_outside_the_window_are_forgotten() -> None:
    restarts = Restarts(limit=2, window_s=100.0, first_delay_s=1.0)
    assert [restarts.after_death(now) for now in (0.0, 200.0, 400.0, 600.0)] == [1.0] * 4
