"""Streams, events, guards, CUDA graphs and the generator of the made-up card.

A program has one order of nodes, that of the host's calls. What a candidate captures in a graph is
recorded, and each replay adds it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

if TYPE_CHECKING:
    from forge.evalpool.judge.program.format import Node


class Stream:
    """A stream: the program has one order of nodes, that of the host's calls."""

    cuda_stream = 0
    device = torch.device("cuda", 0)
    device_index = 0
    stream_id = 0
    priority = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def query(self) -> bool:
        """Always true: no work is pending."""
        return True

    def synchronize(self) -> None:
        """Does nothing: no work is pending."""

    def wait_stream(self, stream: Any) -> None:
        """Does nothing: a program has one order."""

    def wait_event(self, event: Any) -> None:
        """Does nothing: a program has one order."""

    def record_event(self, event: Any = None) -> Any:
        """The event, or a new one."""
        return event or Event()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return 0


class Event:
    """An event: recorded at once, one millisecond after any other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Does nothing: a program has one order."""

    def wait(self, stream: Any = None) -> None:
        """Does nothing: a program has one order."""

    def query(self) -> bool:
        """Always true: no work is pending."""
        return True

    def synchronize(self) -> None:
        """Does nothing: no work is pending."""

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
    """`torch.cuda.device(...)`, `device_of`, `stream`: changes nothing."""

    idx = 0
    prev_idx = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *args: object) -> bool:
        return False


_STREAM = Stream()
STREAMS: dict[str, Any] = {
    "Stream": Stream,
    "ExternalStream": Stream,
    "Event": Event,
    "device": Guard,
    "device_of": Guard,
    "_DeviceGuard": Guard,
    "stream": Guard,
    "StreamContext": Guard,
    "current_stream": lambda device=None: _STREAM,
    "default_stream": lambda device=None: _STREAM,
    "set_stream": lambda stream: None,
}


class NodeList(Protocol):
    """A recorder: the list that nodes go to, and a call that counts them."""

    nodes: list[Node]

    def add(self, node: Node) -> None:
        """Appends a node."""


class Graph:
    """Stands for `torch.cuda.CUDAGraph`."""

    recorder: ClassVar[NodeList | None] = None
    """Recorder of the current capture."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._nodes: list[Node] = []
        self._outer: list[Node] | None = None

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        """Collects the nodes that follow, instead of the program's."""
        assert self.recorder is not None
        self._nodes, self._outer = [], self.recorder.nodes
        self.recorder.nodes = self._nodes

    def capture_end(self) -> None:
        """Ends the collection. Raises RuntimeError if there is none."""
        assert self.recorder is not None
        if self._outer is None:
            raise RuntimeError("capture_end() without capture_begin()")
        self.recorder.nodes, self._outer = self._outer, None

    def replay(self) -> None:
        """Appends the collected nodes to the program."""
        assert self.recorder is not None
        for node in self._nodes:
            self.recorder.add(node)

    def reset(self) -> None:
        """Forgets the collected nodes."""
        self._nodes = []

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
