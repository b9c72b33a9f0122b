"""The GPU side of a runner as far as it needs no GPU: CPU memory, fakes where CUDA is called."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from forge.evalpool.judge import gpu_session
from forge.evalpool.judge.gpu_session import GpuSession

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeEvent:
    def __init__(self, *, enable_timing: bool) -> None:
        pass

    def record(self) -> None:
        pass

    def elapsed_time(self, end: FakeEvent) -> float:
        return 0.25


class FakeStreams:
    is_late = True
    num_replays = 0

    def join(self) -> None:
        pass


KERNEL = SimpleNamespace(fn=SimpleNamespace(__name__="kernel"), starting_line_number=3, raw_src=[])
REQUEST: dict[str, Any] = {
    "tensors": [["float32", [2, 4], 0], ["float32", [2, 4], 32]],
    "sets": [["list", [["tensor", 0]]]],
    "slots": [1],
}


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., GpuSession]:
    """A session with this forward, ready to be timed."""
    tensor: Any = torch.Tensor
    monkeypatch.setattr(tensor, "__array__", tensor.__array__)  # a session replaces it
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def make(forward: Any = None) -> GpuSession:
        streams: Any = FakeStreams()
        memory = torch.zeros(64, dtype=torch.uint8)
        session = GpuSession(REQUEST, memory=memory, file="candidate.py", streams=streams)
        session.tensors[0].fill_(1.0)
        session.tensors[1].fill_(float("nan"))
        session.flush, session.dummies = torch.empty(1), [torch.empty(2, 4)]
        session.model = forward
        return session

    return make


def timed(session: GpuSession, *, is_counted: bool = False) -> list[Any]:
    return session.timed_call(slots=[1], is_dry=False, is_counted=is_counted)


# --- timed calls --------------------------------------------------------------------------------


def test_a_timed_call_says_what_it_returned_beside_its_time(
    make: Callable[..., GpuSession],
) -> None:
    session = make(lambda x: x * 2)
    assert timed(session) == [["Tensor", "float32", [2, 4]]]
    assert (session.event_us, session.returned, session.work) == (250.0, "Tensor", {})
    assert torch.equal(session.tensors[1], torch.full((2, 4), 2.0))


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: (x * 2).half(),
        lambda x: (x * 2)[:1],
        lambda x: torch.nn.Parameter(x * 2)[0],
        lambda x: (x * 2).to_sparse(),
    ],
)
def test_what_a_timed_call_returns_in_another_form_is_not_converted(
    make: Callable[..., GpuSession], forward: Any
) -> None:
    session = make(forward)
    timed(session)
    assert bool(session.tensors[1].isnan().all())


def test_a_timed_call_is_counted_where_that_is_asked(make: Callable[..., GpuSession]) -> None:
    session = make(lambda x: torch.relu(x))
    timed(session, is_counted=True)
    assert session.work == {"relu": 64}
    timed(session)
    assert session.work == {}


def test_launches_and_replays_are_those_of_the_timed_call(
    make: Callable[..., GpuSession],
) -> None:
    session = make()
    session.num_launches = session.num_replays = session.streams.num_replays = 7

    def forward(x: torch.Tensor) -> torch.Tensor:
        session.num_launches += 1
        session.streams.num_replays += 2
        return x * 2

    session.model = forward
    timed(session)
    assert (session.num_launches, session.num_replays) == (1, 2)


def test_a_launch_that_failed_in_a_timed_call_is_its_failure(
    make: Callable[..., GpuSession],
) -> None:
    session = make()

    def broken(function: Any, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("no such grid")

    def forward(x: torch.Tensor) -> torch.Tensor:
        with suppress(ValueError):
            session.launched_on_gpu(broken, KERNEL, (), {})
        return x * 2

    session.model = forward
    with pytest.raises(ValueError, match="no such grid"):
        timed(session)


# --- whose kernels ------------------------------------------------------------------------------


def test_a_kernel_owns_only_its_own_name(
    make: Callable[..., GpuSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's begin with their return type."""
    names = ["void at::native::elementwise_kernel", "void"]
    rows = [SimpleNamespace(key=name, count=1, device_time_total=2.0) for name in names]
    watched = SimpleNamespace(key_averages=lambda: rows)
    monkeypatch.setattr(gpu_session, "profile", lambda **_: nullcontext(watched))
    session = make(lambda x: x)
    session.compiled = {"void"}
    assert [one[3] for one in session.profiled_call()] == [False, True]
