"""Untrusted: one candidate in its process on a GPU: its calls, launches, streams and times.

Made by `gpu_runner.py`, as `session.Session` is by `runner.py`. What it says of times is a claim:
the judge has a clock of its own.
"""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

from forge.evalpool.judge.opcount import OpCounter
from forge.evalpool.judge.session import KernelRefused, Session, def_line

FLUSH_BYTES = 256 << 20
"""Written before a timed call, as in triton.testing.do_bench: more than any L2 cache, and long
enough (about 80 us) that the forward's launches are queued by the time it is done."""
LATE_CYCLES = 40_000_000
"""About 20 ms, more than launching takes: how late a candidate's own streams are in calls that are
not timed."""
DEFAULT_STREAM = 0
UNSUPPORTED = "Unsupported function referenced"
"""How Triton's hash of a kernel refuses Python in it, before its compiler does."""
SKIPPED = (OutOfResources, CompileTimeAssertionFailure, PTXASError)
"""With these Triton's autotuner takes a configuration for one that the card does not have."""


class Streams:
    """The streams that a candidate makes, and the graphs that it replays."""

    def __init__(self) -> None:
        self.made: list[torch.cuda.Stream] = []
        self.is_late = True
        self.num_replays = 0
        self._stops_filling = False
        make, graphs = torch.cuda.Stream.__new__, torch.cuda.CUDAGraph
        replay, begin, end = graphs.replay, graphs.capture_begin, graphs.capture_end

        def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
            stream = make(cls, *args, **kwargs)
            is_named = "stream_id" in kwargs  # as torch itself looks for the current one
            if is_named and kwargs["stream_id"] == DEFAULT_STREAM:
                return stream
            is_known = any(stream == known for known in self.made)  # torch gives its 32 in turn
            if not is_known:
                self.made.append(stream)
            if self.is_late and not (is_named and is_known):
                self._hold_up(stream)
            return stream

        def counted(graph: Any) -> None:
            self.num_replays += 1
            replay(graph)

        def begun(graph: Any, *args: Any, **kwargs: Any) -> None:
            """Fills of empty tensors would be replayed, and timed, for ever."""
            begin(graph, *args, **kwargs)
            self._stops_filling |= torch._C._get_deterministic_algorithms()
            torch._C._set_deterministic_algorithms(False)

        def ended(graph: Any) -> None:
            if self._stops_filling:
                torch._C._set_deterministic_algorithms(True, warn_only=True)
            self._stops_filling = False
            end(graph)

        torch.cuda.Stream.__new__ = new
        torch.Stream = torch.cuda.Stream
        graphs.replay = counted  # pyright: ignore[reportAttributeAccessIssue]
        graphs.capture_begin = begun  # pyright: ignore[reportAttributeAccessIssue]
        graphs.capture_end = ended  # pyright: ignore[reportAttributeAccessIssue]

    def hold_up(self) -> None:
        """Makes work on them late: who does not wait for it gives an answer that is not there."""
        for stream in tuple(self.made):
            self._hold_up(stream)

    def join(self) -> None:
        """Makes the current stream wait for them, or the last event would not see their work."""
        for stream in tuple(self.made):
            torch.cuda.current_stream().wait_stream(stream)

    def _hold_up(self, stream: torch.cuda.Stream) -> None:
        if torch.cuda.is_current_stream_capturing():
            return
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LATE_CYCLES)


class GpuSession(Session):
    """One candidate with its tensors on the current device."""

    def __init__(
        self, request: dict[str, Any], *, memory: torch.Tensor, file: str, streams: Streams
    ) -> None:
        super().__init__(
            request,
            memory=memory,
            compiler=None,
            refused=KernelRefused,
            file=file,
        )
        self.streams = streams
        self.skipped: tuple[type[Exception], ...] = ()
        """Errors that whoever launches now expects: no failed launches."""
        self.flush: torch.Tensor | None = None
        self.dummies: list[torch.Tensor] = []

    def view(self, memory: Any, dtype: str, shape: list[int], offset: int) -> torch.Tensor:
        kind = getattr(torch, dtype)
        num_bytes = kind.itemsize
        for size in shape:
            num_bytes *= size
        return memory[offset : offset + num_bytes].view(kind).view(shape)

    def making(self) -> AbstractContextManager[Any]:
        return torch.device("cuda")

    def place(self, model: Any) -> Any:
        return model.to("cuda") if isinstance(model, torch.nn.Module) else model

    def prepare(self) -> None:
        super().prepare()
        if self.request.get("is_compiled"):
            # Called once under a counter, it would run as it is from then on.
            self.is_counted = False
            torch._C._set_deterministic_algorithms(False)
            self.model = torch.compile(self.model, dynamic=False)

    def call(self, number: int, *, slots: list[int]) -> list[Any]:
        self.streams.is_late, self.streams.num_replays = True, 0
        self.streams.hold_up()
        forms = super().call(number, slots=slots)
        torch.cuda.synchronize()
        self.num_replays = self.streams.num_replays
        return forms

    def timed_call(self, *, slots: list[int], is_dry: bool, is_counted: bool) -> list[Any]:
        """As `call`, with its GPU time as the events have it."""
        self._begin("time")
        self.streams.is_late, self.streams.num_replays = False, 0
        self._prepare_timing([self.tensors[slot] for slot in slots])
        inputs = self._decode(self.request["sets"][0])
        counter = OpCounter()
        counting = counter if is_counted else nullcontext()
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        assert self.flush is not None
        with torch.no_grad():
            self.flush.zero_()
            start.record()
            with counting:
                result = self.dummies if is_dry else self.model(*inputs)
            self.streams.join()
            end.record()
            forms = self._deliver(result, slots=slots)
        torch.cuda.synchronize()
        self.work, self.num_replays = counter.work, self.streams.num_replays
        self.event_us = start.elapsed_time(end) * 1000
        return forms

    def profiled_call(self) -> list[tuple[str, int, float, bool]]:
        """(name, calls, us, own) of each GPU kernel in one forward."""
        self._begin("profile")
        inputs = self._decode(self.request["sets"][0])
        with torch.no_grad(), profile(activities=[ProfilerActivity.CUDA]) as watched:
            self.model(*inputs)
            torch.cuda.synchronize()
        return [
            (one.key, one.count, one.device_time_total, one.key in self.compiled)
            for one in watched.key_averages()
            if one.device_time_total > 0
        ]

    def launched_on_gpu(self, original: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """A launch: counted, stubbed in the ghost replay, its failure remembered."""
        self.num_launches += 1
        if self.is_ghost:
            return None
        try:
            kernel = original(function, *args, **kwargs)
        except self.skipped:
            raise
        except (CompilationError, PTXASError) as error:
            self.compile_line = _refused_line(error, function)
            name = function.fn.__name__
            refused = KernelRefused(f"{name}: {_innermost(error)}")
            self.failed_launch = self.failed_launch or refused
            raise refused from None
        except BaseException as error:
            if not str(error).startswith(UNSUPPORTED):
                self.failed_launch = self.failed_launch or error
                raise
            self.compile_line = def_line(function)
            refused = KernelRefused(f"{function.fn.__name__}: {error}")
            self.failed_launch = self.failed_launch or refused
            raise refused from None
        self.compiled.add(function.fn.__name__)
        return kernel

    def _prepare_timing(self, targets: list[torch.Tensor]) -> None:
        if self.flush is not None:
            return
        self.kept.clear()
        # Its fills of empty tensors would be timed too.
        torch._C._set_deterministic_algorithms(False)
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self.dummies = [torch.empty_like(target) for target in targets]
        gc.collect()
        gc.disable()


def _refused_line(error: BaseException, function: Any) -> int:
    """The innermost line of the candidate that the compiler names."""
    line = def_line(function)
    values = function.fn.__globals__.values()
    starts = {one.src: def_line(one) for one in values if isinstance(one, JITFunction)}
    for one in _chain(error):
        start = starts.get(getattr(one, "src", None) or "")
        own = getattr(getattr(one, "node", None), "lineno", None)
        if start is not None and own is not None:
            line = start + own - 1
    return line


def _innermost(error: BaseException) -> str:
    message = ""
    for one in _chain(error):
        message = str(getattr(one, "error_message", None) or one) or message
    return message


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None:
        found.append(error)
        error = error.__cause__
    return found
