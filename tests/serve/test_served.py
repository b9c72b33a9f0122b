"""One generate over several servers, of which some are lost or fail; and the restarts."""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import forge.serve.served
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled
from forge.process.busy import BusyClock
from forge.records import Completion, Finish, Prompt
from forge.serve.replica import Restarts
from forge.serve.served import BLOCK_TOKENS, Router, SampleRequest, Served

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


SYSTEM = list(range(2 * BLOCK_TOKENS))
"""Common start of all prompts of a run."""


def choose(router: Router, *loads: int, prompt: list[int]) -> int:
    """Number of the server that is chosen among those with these loads."""
    up: list[Any] = [SimpleNamespace(name=f"{i}", load=n) for i, n in enumerate(loads)]
    return int(router.choose(up, prompt).name)


def problem(number: int, *, num_tokens: int = 4 * BLOCK_TOKENS) -> list[int]:
    return SYSTEM + [1000 + number] * num_tokens


@given(st.lists(st.integers(0, 500), min_size=1, max_size=8))
def test_without_a_prefix_cache_the_first_of_the_least_loaded_is_chosen(samples: list[int]) -> None:
    chosen = choose(Router(slots=32), *samples, prompt=SYSTEM)
    assert chosen == samples.index(min(samples))


def test_later_turns_and_further_samples_go_to_the_replica_with_their_prefix() -> None:
    router = Router(slots=32, has_prefix_cache=True)
    homes = {n: choose(router, 0, 0, 0, prompt=problem(n)) for n in range(3)}
    # All three have the system prompt, so only a replica's own problem differs.
    assert homes[0] == 0
    choose(router, 9, 0, 9, prompt=problem(7))
    assert choose(router, 3, 3, 3, prompt=problem(7) + [5] * 300) == 1
    assert choose(router, 0, 3, 0, prompt=problem(7)) == 1, "3 of 32 slots are hardly busy"


def test_a_much_busier_replica_loses_prompts_with_its_prefix() -> None:
    router = Router(slots=32, has_prefix_cache=True)
    assert choose(router, 0, 1, prompt=problem(1)) == 0
    assert choose(router, 41, 40, prompt=problem(1)) == 0, "hardly busier"
    assert choose(router, 41, 30, prompt=problem(1)) == 1
    assert choose(router, 5, 4, prompt=problem(1)) == 1, "both know it by now"


def test_a_replica_that_died_has_no_prefixes() -> None:
    router = Router(slots=32, has_prefix_cache=True)
    choose(router, 0, 1, prompt=problem(1))
    assert choose(router, 2, 0, prompt=problem(1)) == 0
    router.forget("0")
    assert choose(router, 2, 0, prompt=problem(1)) == 1
