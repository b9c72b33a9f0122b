"""Streams, events, guards and the generator of the made-up card: a program has one order of nodes,
that of the host's calls.
"""

from __future__ import annotations

from typing import Any

import torch


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
