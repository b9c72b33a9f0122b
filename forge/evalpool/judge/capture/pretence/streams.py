"""Streams, events, guards, CUDA graphs and the generator of the made-up card.

A program's nodes stand in the order of the host's calls. `Order` notes the stream of each and what
streams wait for: the judge tries other orders that a card may choose. What a candidate captures in
a graph is recorded, and each replay adds it again.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

if TYPE_CHECKING:
    from forge.evalpool.judge.program.format import Node

POOL = 32
"""Streams that torch makes; `torch.cuda.Stream()` takes the next one."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the work of a stream."""

    entries: list[tuple[int, ...]]
    stream: int
    since: int


class Order:
    """Streams of a list of nodes and their waits, as `Program.streams` has them.

    Attributes:
        nodes: The list whose order is noted.
        current: The current stream.
    """

    def __init__(self) -> None:
        self.current: Stream = _DEFAULT
        self.entries: list[tuple[int, ...]] = []
        self._numbers: dict[int, int] = {}
        self.begin([])

    def begin(self, nodes: list[Node]) -> None:
        """Notes the order of another list from now on."""
        self.nodes, self.entries = nodes, []
        self._numbers = {self.current.cuda_stream: 0}

    def kept(self) -> tuple[Any, ...]:
        """The order so far, for `put_back`."""
        return self.nodes, self.entries, self._numbers

    def put_back(self, kept: tuple[Any, ...]) -> None:
        """Goes on with an order that was kept."""
        self.nodes, self.entries, self._numbers = kept

    def number(self, stream: Stream) -> int:
        """A stream's number in the list: 0 for the one that was current at first."""
        return self._numbers.setdefault(stream.cuda_stream, len(self._numbers))

    def virtual(self) -> int:
        """The number of a stream that nothing else uses."""
        return self._numbers.setdefault(-1 - len(self._numbers), len(self._numbers))

    def ran(self, stream: int | None = None) -> None:
        """A node was added, on the current stream by default."""
        self.entries.append((self.number(self.current) if stream is None else stream,))

    def mark(self, stream: Stream) -> Mark:
        """The end of a stream's work so far."""
        return Mark(self.entries, self.number(stream), len(self.entries))

    def wait(self, stream: Stream | None, mark: Mark | None) -> None:
        """Has a stream wait, or the host. Work of another list is over."""
        if mark is not None and mark.entries is self.entries:
            waiting = -1 if stream is None else self.number(stream)
            self.entries.append((waiting, mark.stream, mark.since))

    def wait_for_all(self) -> None:
        """Has the host wait for every stream."""
        for number in range(len(self._numbers)):
            self.entries.append((-1, number, len(self.entries)))

    def timeline(self) -> tuple[tuple[int, ...], ...]:
        """Streams and waits, and at the end the current stream; empty for one stream."""
        entries = [*self.entries, (self.number(self.current),)]
        return tuple(entries) if any(one[0] > 0 for one in entries) else ()

    def launch_graph(self, nodes: list[Node], entries: list[tuple[int, ...]]) -> None:
        """Adds the nodes of a graph. It begins after the current stream's work, which goes on when
        the graph is over."""
        recorder = Graph.recorder
        assert recorder is not None
        others = sorted({one[0] for one in entries if one[0] > 0})
        numbers = {-1: -1, 0: self.number(self.current)} | {one: self.virtual() for one in others}
        for one in others:
            self.entries.append((numbers[one], numbers[0], len(self.entries)))
        start, left = len(self.entries), iter(nodes)
        for stream, *waits in entries:
            if not waits:
                recorder.add(next(left), stream=numbers[stream])
            else:
                other, since = waits
                self.entries.append(
                    (numbers[stream], numbers.get(other, numbers[0]), start + since)
                )
        for one in others:
            self.entries.append((numbers[0], numbers[one], len(self.entries)))


class Stream:
    """A stream of the made-up card."""

    device = torch.device("cuda", 0)
    device_index = 0
    priority = 0
    _made = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.cuda_stream = self.stream_id = 1 + next(Stream._made) % POOL
        self._outer: list[tuple[Order, Stream]] = []

    def __enter__(self) -> Stream:
        order = _order()
        self._outer.append((order, order.current))
        order.current = self
        return self

    def __exit__(self, *args: object) -> None:
        order, outer = self._outer.pop()  # that of a generator may come after the capture
        order.current = outer

    def query(self) -> bool:
        """Always true: all work is done, since the host waits for it."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Has the host wait."""
        _order().wait(None, _order().mark(self))

    def wait_stream(self, stream: Any) -> None:
        """Waits for another stream's work so far."""
        _order().wait(self, _order().mark(stream))

    def wait_event(self, event: Any) -> None:
        """Waits for what an event has recorded."""
        _order().wait(self, event.mark)

    def record_event(self, event: Any = None) -> Any:
        """The event, or a new one."""
        event = event or Event()
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return self.cuda_stream


class Event:
    """An event: one millisecond after any other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.mark: Mark | None = None

    def record(self, stream: Any = None) -> None:
        """Records a stream's work so far."""
        self.mark = _order().mark(stream or _order().current)

    def wait(self, stream: Any = None) -> None:
        """Has a stream wait for it."""
        _order().wait(stream or _order().current, self.mark)

    def query(self) -> bool:
        """Always true: it is over, since the host waits for it."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Has the host wait for it."""
        _order().wait(None, self.mark)

    def elapsed_time(self, other: Any) -> float:
        """One millisecond: nothing is timed in a capture."""
        return 1.0


class Generator:
    """The card's random generator: its state is a seed and an offset, as CUDA's."""

    device = torch.device("cuda", 0)

    def __init__(self, device: Any = None) -> None:
        self._state = torch.tensor([0, 0], dtype=torch.int64)

    def get_state(self) -> torch.Tensor:
        """[16] uint8: seed and offset."""
        return self._state.view(torch.uint8).clone()

    def set_state(self, state: torch.Tensor) -> None:
        """Takes what `get_state` gave."""
        self._state = state.clone().view(torch.int64)

    def manual_seed(self, seed: int) -> Generator:
        """Sets the seed and the offset 0."""
        self._state = torch.tensor([seed, 0], dtype=torch.int64)
        return self

    def initial_seed(self) -> int:
        """The seed."""
        return int(self._state[0])

    seed = initial_seed


class Guard:
    """`torch.cuda.device(...)`, `device_of`: changes nothing."""

    idx = 0
    prev_idx = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *args: object) -> bool:
        return False


class StreamGuard:
    """`torch.cuda.stream(...)`: another current stream; None is the one that is."""

    def __init__(self, stream: Any = None) -> None:
        self.stream: Stream | None = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *args: object) -> None:
        if self.stream is not None:
            self.stream.__exit__()


def _external(pointer: int = 0, *args: Any, **kwargs: Any) -> Stream:
    """The stream with this address."""
    made = Stream()
    made.cuda_stream = made.stream_id = pointer
    return made


def _set_stream(stream: Any) -> None:
    if stream is not None:
        _order().current = stream


def _order() -> Order:
    assert Graph.recorder is not None
    return Graph.recorder.order


_DEFAULT = _external()
STREAMS: dict[str, Any] = {
    "Stream": Stream,
    "ExternalStream": _external,
    "Event": Event,
    "device": Guard,
    "device_of": Guard,
    "_DeviceGuard": Guard,
    "stream": StreamGuard,
    "StreamContext": StreamGuard,
    "current_stream": lambda device=None: _order().current,
    "default_stream": lambda device=None: _DEFAULT,
    "set_stream": _set_stream,
    "synchronize": lambda device=None: _order().wait_for_all(),
}


class NodeList(Protocol):
    """A recorder: the list that nodes go to, their order, and a call that counts them."""

    nodes: list[Node]
    order: Order

    def add(self, node: Node, *, stream: int | None = None) -> None:
        """Appends a node, on the current stream by default."""


class Graph:
    """Stands for `torch.cuda.CUDAGraph`."""

    recorder: ClassVar[NodeList | None] = None
    """Recorder of the current capture."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._nodes: list[Node] = []
        self._entries: list[tuple[int, ...]] = []
        self._outer: tuple[list[Node], Any] | None = None

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        """Collects the nodes that follow, instead of the program's."""
        assert self.recorder is not None
        self._nodes, self._outer = [], (self.recorder.nodes, self.recorder.order.kept())
        self.recorder.nodes = self._nodes
        self.recorder.order.begin(self._nodes)

    def capture_end(self) -> None:
        """Ends the collection. Raises RuntimeError if there is none."""
        assert self.recorder is not None
        if self._outer is None:
            raise RuntimeError("capture_end() without capture_begin()")
        self._entries = self.recorder.order.entries
        self.recorder.nodes, kept = self._outer
        self.recorder.order.put_back(kept)
        self._outer = None

    def replay(self) -> None:
        """Appends the collected nodes to the program."""
        assert self.recorder is not None
        self.recorder.order.launch_graph(self._nodes, self._entries)

    def reset(self) -> None:
        """Forgets the collected nodes."""
        self._nodes, self._entries = [], []

    def pool(self) -> tuple[int, int]:
        """An id: there is no pool of memory."""
        return 0, 0

    def enable_debug_mode(self) -> None:
        """Does nothing."""

    def debug_dump(self, path: str) -> None:
        """Writes nothing."""


class Capturing:
    """Stands for `torch.cuda.graph`."""

    def __init__(self, cuda_graph: Graph, *args: Any, **kwargs: Any) -> None:
        self.cuda_graph = cuda_graph

    def __enter__(self) -> None:
        self.cuda_graph.capture_begin()

    def __exit__(self, *args: object) -> None:
        self.cuda_graph.capture_end()
