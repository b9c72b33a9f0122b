"""A supervisor that answers on a real socket and holds the run's lock: a live run seen from
outside.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import HTTPServer
from pathlib import Path
from typing import Any

from forge.process.sockets import open_socket_dir
from forge.store.layout import RunPaths, open_run_lock, read_status, write_status
from tests.answering import Handler, running


def component(name: str, role: str, **more: Any) -> dict[str, Any]:
    """One component as sent over the socket; healthy by default."""
    return {
        "name": name, "role": role, "device": "cpu", "phase": "waiting", "health": "green",
        "why": "", "memory_bytes": 850 * 2**20, "gpu_memory_bytes": None, "gpu_use": None,
        "progress_age_s": 2.5, "num_restarts": 0, "last_words": "", **more,
    }  # fmt: skip


COMPONENTS = [
    component("supervisor", "supervisor", phase="grpo-3", progress_age_s=0.1, cpu_cores=0.12),
    component(
        "trainer", "trainer", device="GPU 0", phase="training", gpu_use=0.93, cpu_cores=1.0,
        gpu_memory_bytes=71 * 2**30, last_words="step 12: loss 0.02",
    ),
    component("serve-0", "serve", device="GPU 1", phase="generating", health="yellow",
              why="memory 93 % of 80 GB", gpu_use=0.8, gpu_memory_bytes=74 * 2**30, cpu_cores=1.84),
    component("judge-0", "judge", health="red", phase="starting", num_restarts=2,
              why="restarted 20 s ago", last_words="killed by signal 9"),
]  # fmt: skip


@dataclass
class Supervisor:
    """Its answers, and the requests that it received."""

    status: dict[str, Any]
    refuses: dict[str, str] = field(default_factory=dict)
    """Path to the error message that refuses it."""
    asked: list[str] = field(default_factory=list)


class UnixServer(HTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)

    def get_request(self):
        request, _ = self.socket.accept()
        return request, ("", 0)


@contextmanager
def control_socket(handler: type[Handler]) -> Iterator[Path]:
    """A control.sock whose requests a handler answers."""
    with open_socket_dir() as folder:
        path = folder / "control.sock"
        server = UnixServer(str(path), handler)  # pyright: ignore[reportArgumentType]
        with running(server):
            yield path


@contextmanager
def supervising(paths: RunPaths) -> Iterator[Supervisor]:
    """A supervisor of that run, in step 12 of 20."""
    supervisor = Supervisor(
        status={
            "ok": True, "run": paths.name, "stage": "grpo-3", "done": 12, "total": 20,
            "unit": "steps", "elapsed_s": 300.0, "eta_s": 125.0, "tokens_per_s": 6101.8,
            "judged_per_s": 12.13, "idle": {"trainer": 0.25, "serve": 0.0, "judge": 0.5},
            "numbers": {"reward": 0.2}, "components": COMPONENTS,
        }
    )  # fmt: skip

    class Control(Handler):
        def do_GET(self) -> None:
            self.answer(supervisor.status)

        def do_POST(self) -> None:
            self.read()  # a socket closed with unread data discards its answer
            supervisor.asked.append(self.path)
            if self.path in supervisor.refuses:
                self.answer({"error": supervisor.refuses[self.path]}, status=400)
            else:
                self.answer({"message": f"{self.path} will be done"})

    with open_run_lock(paths), control_socket(Control) as path:
        before = read_status(paths)
        write_status(paths, {**before, "pid": os.getpid(), "control_socket": str(path)})
        try:
            yield supervisor
        finally:
            write_status(paths, before)
