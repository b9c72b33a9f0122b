"""CUDA graphs of a candidate: what it captures is recorded, and each replay adds it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from forge.evalpool.judge.program.format import Node


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
