"""The GPU side of a runner as far as it needs no GPU: CPU memory, fakes where CUDA is called."""

from __future__ import annotations

import ast
import functools
import mmap
import os
import socket
import sys
import time
import weakref
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

from forge.evalpool.judge import frames, gpu_runner, gpu_session
from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.gpu_runner import Launches
from forge.evalpool.judge.gpu_session import GpuSession, Streams
from forge.evalpool.judge.session import KernelRefused, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


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

    def hold_up(self) -> None:
        pass

    def join(self) -> None:
        pass


REPLACED: list[tuple[Any, str]] = [
    (JITFunction, "run"),
    (Autotuner, "_bench"),
    (torch, "Stream"),
    (torch.cuda.Stream, "__new__"),
    (torch.cuda.CUDAGraph, "replay"),
    (torch.cuda.CUDAGraph, "capture_begin"),
    (torch.cuda.CUDAGraph, "capture_end"),
]
MEMORY = {"num_bytes": 64, "memory_share": 0.5}
KERNEL = SimpleNamespace(fn=SimpleNamespace(__name__="kernel"), starting_line_number=3, raw_src=[])
REQUEST: dict[str, Any] = {
    "tensors": [["float32", [2, 4], 0], ["float32", [2, 4], 32]],
    "sets": [["list", [["tensor", 0]]]],
    "slots": [1],
}


@pytest.fixture(autouse=True)
def _tensors_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session replaces these."""
    tensor: Any = torch.Tensor
    for name in ("__array__", "__repr__"):
        monkeypatch.setattr(tensor, name, getattr(tensor, name))


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., GpuSession]:
    """A session with this forward, ready to be timed."""
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


def test_a_baseline_under_torch_compile_stays_compiled_in_timed_calls(
    make: Callable[..., GpuSession], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One call of it under a dispatch mode, and Dynamo would let it run as it is for ever."""
    num_calls = [0]

    def backend(graph: Any, _: Any) -> Any:
        def run(*args: Any) -> Any:
            num_calls[0] += 1
            return graph.forward(*args)

        return run

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    monkeypatch.setattr(torch._C, "_set_deterministic_algorithms", lambda *_, **__: None)
    code = (
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x.relu() * 2"
    )
    session = make()
    session.file = str(tmp_path / "candidate1.py")
    session.request = {
        **REQUEST, "code": code, "entry_point": "Model", "state": [], "init": ["list", []],
        "is_compiled": True,
    }  # fmt: skip
    monkeypatch.setattr(session, "making", nullcontext)
    monkeypatch.setattr(session, "place", lambda model: model)
    session.prepare()
    session.call(0, slots=[1])
    for _ in range(3):
        timed(session)
    assert num_calls == [4]


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


# --- launches -----------------------------------------------------------------------------------


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """What they replace is put back."""
    for owner, name in REPLACED:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    return Launches()


def kernel(x: Any, BLOCK: Any) -> None:
    pass


def launch_tuned(session: GpuSession, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    """A kernel of two configurations, the first of which fails."""

    def run(function: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs["BLOCK"] == 64:
            raise failure

    def bench(call: Callable[[], None], quantiles: Any) -> list[float]:
        call()
        return [1.0, 1.0, 1.0]

    monkeypatch.setattr(JITFunction, "run", run)
    launches = Launches()
    launches.session = session
    tuned = triton.autotune(
        [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 32})], key=[], do_bench=bench
    )(JITFunction(kernel))
    tuned.run(torch.ones(4), grid=(1,), warmup=False)


@pytest.mark.parametrize(
    "failure",
    [
        OutOfResources(300_000, 232_448, "shared memory"),
        PTXASError("ptxas failed"),
        CompileTimeAssertionFailure("assert", ast.Pass(), "too large"),
    ],
)
@pytest.mark.usefixtures("launches")
def test_a_configuration_that_the_card_does_not_have_is_skipped(
    make: Callable[..., GpuSession], monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    session = make()
    launch_tuned(session, monkeypatch, failure)
    assert (session.failed_launch, session.compiled, session.skipped) == (None, {"kernel"}, ())


@pytest.mark.usefixtures("launches")
def test_other_errors_fail_while_tuning_too(
    make: Callable[..., GpuSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make()
    with pytest.raises(ValueError, match="no such grid"):
        launch_tuned(session, monkeypatch, ValueError("no such grid"))
    assert isinstance(session.failed_launch, ValueError)
    with pytest.raises(KernelRefused):
        launch_tuned(make(), monkeypatch, CompilationError("body", ast.Pass(), "no such name"))


# --- streams ------------------------------------------------------------------------------------


class FakeStream:
    """As torch's: whoever asks for the current one makes an object that names it."""

    current = 0
    num_made = 0

    def __new__(cls, **kwargs: Any) -> Any:
        stream = object.__new__(cls)
        if "stream_id" not in kwargs:
            FakeStream.num_made += 1
        stream.number = kwargs.get("stream_id", FakeStream.num_made)
        return stream

    def __init__(self, **kwargs: Any) -> None:
        self.number: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeStream) and self.number == other.number

    __hash__ = None  # pyright: ignore[reportAssignmentType]


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The streams that were."""
    held: list[int] = []

    @contextmanager
    def stream(chosen: FakeStream) -> Iterator[None]:
        before = torch.cuda.Stream(stream_id=FakeStream.current)
        assert isinstance(before, FakeStream)
        FakeStream.current = chosen.number
        yield
        FakeStream.current = before.number

    monkeypatch.setattr(FakeStream, "__new__", FakeStream.__new__)
    monkeypatch.setattr(FakeStream, "num_made", 0)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: held.append(FakeStream.current))
    for name in ("replay", "capture_begin", "capture_end"):
        monkeypatch.setattr(torch.cuda.CUDAGraph, name, getattr(torch.cuda.CUDAGraph, name))
    return held


def test_a_new_stream_is_held_up_once_and_the_current_one_never(held_up: list[int]) -> None:
    streams = Streams()
    torch.cuda.Stream()
    torch.cuda.Stream(stream_id=0)
    torch.cuda.Stream(stream_id=1)
    assert held_up == [1]
    torch.cuda.Stream()
    streams.hold_up()
    assert held_up == [1, 2, 1, 2]
    streams.is_late = False
    torch.cuda.Stream()
    assert held_up == [1, 2, 1, 2]
    assert len(streams.made) == 3


def test_a_stream_of_torch_that_is_reached_by_its_number_is_known_too(held_up: list[int]) -> None:
    streams = Streams()
    torch.cuda.Stream(stream_id=35)
    assert (held_up, len(streams.made)) == ([35], 1)


@pytest.mark.usefixtures("held_up")
def test_empty_tensors_are_filled_but_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_filling() -> bool:
        return torch._C._get_deterministic_algorithms()

    ended: list[bool] = []
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", lambda graph, **_: None)
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "capture_end", lambda graph: ended.append(is_filling())
    )
    Streams()
    graph: Any = object()
    try:
        for filling in (True, False):  # correctness, then time
            torch._C._set_deterministic_algorithms(filling, warn_only=True)
            torch.cuda.CUDAGraph.capture_begin(graph, capture_error_mode="global")
            assert not is_filling()
            torch.cuda.CUDAGraph.capture_end(graph)
            torch.cuda.CUDAGraph.capture_end(graph)
            assert is_filling() == filling
    finally:
        torch._C._set_deterministic_algorithms(False)
    assert ended == [True, True, False, False]


# --- between two candidates ---------------------------------------------------------------------

KEPT = """
import torch
class ModelNew:
    def __init__(self):
        self.itself = self
    def load_reference(self, state):
        pass
    def __call__(self, x):
        return x * 2
"""


@pytest.mark.usefixtures("launches", "make")
def test_nothing_of_a_candidate_is_left_when_it_is_let_go_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sessions: list[weakref.ref[GpuSession]] = []
    told: list[str] = []

    class FakeBlock:
        def bytes(self) -> torch.Tensor:
            return torch.zeros(64, dtype=torch.uint8)

        def close(self) -> None:
            assert all(session() is None for session in sessions)
            told.append("closed")

    begin = Launches.begin

    def watched(launches: Launches, request: dict[str, Any], *, file: str) -> GpuSession:
        session = begin(launches, request, file=file)
        sessions.append(weakref.ref(session))
        return session

    monkeypatch.setattr(Launches, "begin", watched)
    monkeypatch.setattr(gpu_runner.gpu_memory, "open_block", lambda fd, num_bytes: FakeBlock())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: told.append("emptied"))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share: None)
    ours, theirs = socket.socketpair()
    body = {**REQUEST, "code": KEPT, "entry_point": "ModelNew", "state": [], "tf32": False}
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with ours, theirs:
            for _ in range(2):
                frames.send(ours, Kind.CANDIDATE, MEMORY, fds=(fd,))
                frames.send(ours, Kind.CANDIDATE, {**body, "init": ["list", []]})
            frames.send(ours, Kind.CALL, {"let_go": True})
            ours.shutdown(socket.SHUT_WR)
            with pytest.raises(SystemExit):
                gpu_runner.main(theirs, file=str(tmp_path / "candidate.py"))
            deadline = time.monotonic() + 5
            kinds = [
                frames.receive(ours, deadline=deadline, expected=(Kind.DONE, Kind.FAILED))
                for _ in range(5)
            ]
    finally:
        os.close(fd)
        torch._C._set_deterministic_algorithms(False)
    assert [one.kind for one in kinds] == [Kind.DONE] * 5, kinds
    assert len(sessions) == 2
    assert told == ["closed", "emptied"] * 2
    assert "candidate" not in sys.modules


@pytest.mark.usefixtures("launches", "make")
@pytest.mark.parametrize("error", [None, RuntimeError("CUDA error: out of memory")])
def test_a_context_can_be_made_before_there_is_a_candidate(
    error: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def make_context() -> None:
        told.append("context")
        if error is not None:
            raise error

    def open_block(fd: int, num_bytes: int) -> None:
        told.append("memory")

    monkeypatch.setattr(gpu_runner.gpu_memory, "make_context", make_context)
    monkeypatch.setattr(gpu_runner.gpu_memory, "open_block", open_block)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share: told.append(f"{share}")
    )
    ours, theirs = socket.socketpair()
    fd = os.open(tmp_path, os.O_RDONLY)
    with ours, theirs:
        frames.send(ours, Kind.CALL, {"context": True})
        frames.send(ours, Kind.CALL, {"let_go": True})
        frames.send(ours, Kind.CANDIDATE, MEMORY, fds=(fd,))
        os.close(fd)
        ours.shutdown(socket.SHUT_WR)
        with suppress(SystemExit):
            gpu_runner.main(theirs, file=str(tmp_path / "candidate.py"))
        expected = (Kind.DONE, Kind.FAILED)
        deadline = time.monotonic() + 5
        first = frames.receive(ours, deadline=deadline, expected=expected)
        assert first.kind is (Kind.DONE if error is None else Kind.FAILED)
        if error is not None:
            assert (first.body["stage"], told) == ("device", ["context"])
            return
        for _ in range(2):
            frames.receive(ours, deadline=deadline, expected=(Kind.DONE,))
    assert told == ["context", "memory", str(MEMORY["memory_share"])]


# --- a reference that is timed ------------------------------------------------------------------

LINEAR = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.linear(x)
"""


@pytest.mark.parametrize(
    ("precision", "is_cast", "dtype"),
    [
        ("fp16", True, torch.float16),
        ("bf16", True, torch.bfloat16),
        ("fp16", False, torch.float32),
        ("fp32", True, torch.float32),
    ],
)
@pytest.mark.usefixtures("make")
def test_a_reference_is_cast_before_its_parameters_are_loaded(
    tmp_path: Path, precision: str, is_cast: bool, dtype: torch.dtype
) -> None:
    request: dict[str, Any] = {
        "tensors": [["float16", [4, 4], 0], ["float16", [4], 32], ["float16", [2, 4], 40]],
        "sets": [["list", [["tensor", 2]]]],
        "state": [["linear.weight", 0], ["linear.bias", 1]],
        "init": ["list", []],
        "code": LINEAR,
        "entry_point": "Model",
        "precision": precision,
    }
    if is_cast:
        request["cast"] = True
    memory = mmap.mmap(-1, 64)
    file = str(tmp_path / "candidate.py")
    session = Session(request, memory=memory, compiler=None, refused=KernelRefused, file=file)
    for tensor in session.tensors:
        tensor.fill_(0.5)
    session.prepare()
    weight = session.model.linear.weight
    assert (weight.dtype, bool((weight == 0.5).all())) == (dtype, True)
    if dtype is torch.float16:
        assert session.call(0, slots=[]) == [["Tensor", "float16", [2, 4]]]
