"""Events, guards and the generator of the made-up card, and its one stream.

The judge runs and times a program on one stream, in a graph of its own, in the order of the host's
calls. A candidate that makes another stream or a graph is refused (`capture.stage`).
"""

from __future__ import annotations

from typing import Any

import torch


class Stream:
    """The current stream of the made-up card."""

    device = torch.device("cuda", 0)
    device_index = 0
    priority = 0
    cuda_stream = stream_id = 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def query(self) -> bool:
        """Always true: all work is done, since the host waits for it."""
        return True

    def synchronize(self) -> None:
        """Has the host wait."""

    def wait_stream(self, stream: Any) -> None:
        """Waits for work before it, which is over."""

    wait_event = wait_stream

    def record_event(self, event: Any = None) -> Any:
        """The event, or a new one."""
        return event or Event()


class Event:
    """An event: one millisecond after any other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Records the work so far."""

    wait = record

    def query(self) -> bool:
        """Always true: it is over, since the host waits for it."""
        return True

    def synchronize(self) -> None:
        """Has the host wait for it."""

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


class StreamGuard(Guard):
    """`torch.cuda.stream(...)` of the current stream, or of None, which is the same."""

    def __init__(self, stream: Any = None) -> None:
        require_current(stream)


def require_current(stream: Any) -> None:
    """Raises TypeError for anything but the current stream, or None for it."""
    if stream is not None and stream is not CURRENT:
        raise TypeError(f"{stream!r} is not the current stream")


CURRENT = Stream()
STREAMS: dict[str, Any] = {
    "Stream": Stream,
    "Event": Event,
    "device": Guard,
    "device_of": Guard,
    "_DeviceGuard": Guard,
    "stream": StreamGuard,
    "StreamContext": StreamGuard,
    "current_stream": lambda device=None: CURRENT,
    "default_stream": lambda device=None: CURRENT,
    "set_stream": require_current,
    "synchronize": lambda device=None: None,
}
