"""An executor whose process is a thread on a made-up card, and programs for it."""

import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from forge.evalpool.judge.channel.frames import PeerGone
from forge.evalpool.judge.compiler.binary import Binary
from forge.evalpool.judge.execute.call import Call, RunReport
from forge.evalpool.judge.execute.executors import Executor
from forge.evalpool.judge.execute.gpu.card import Card
from forge.evalpool.judge.execute.gpu.child import ContextLost, Executing
from forge.evalpool.judge.execute.gpu.run import Progress
from forge.evalpool.judge.program.format import Kernel, Node, Options, Parameter
from tests.evalpool.execute.host_card import KERNELS, Block, HostCard
from tests.evalpool.execute.made_programs import Made, data_of

TYPES = {"x": "*fp32", "out": "*fp32", "factor": "fp32", "n": "i64", "by": "i64", "memo": "*fp32"}
NAMES = {
    "scale": ("x", "out", "factor", "n"),
    "write_beside": ("out", "by"),
    "overwrite": ("x", "n"),
    "count_up": ("out",),
    "keyed_memo": ("x", "out", "memo", "n"),
    "few_times": ("x", "out", "memo", "n"),
    "where_poisoned": ("x", "out", "memo", "n"),
    "slow": ("out",),
    "quick": ("out",),
}


def soon(seconds: float = 30.0) -> float:
    return time.monotonic() + seconds


def binary(**facts: Any) -> Binary:
    """A binary of one small kernel, but for some facts."""
    usual: dict[str, Any] = {
        "key": "0" * 64, "target": "cuda:90:32", "code": b"", "num_warps": 4,
        "global_scratch_bytes": 0,
        "tensor_maps": (),
        "tensor_memory": 0, "num_registers": 0, "num_spills": 0,
    }  # fmt: skip
    return Binary(**usual | facts)


def kernel(made: Made, name: str, *, shared_bytes: int = 0) -> int:
    parameters = tuple(Parameter(name=one, type=TYPES[one]) for one in NAMES.get(name, ()))
    made.kernels.append(Kernel(name=name, ttir=name, options=Options(), parameters=parameters))
    assert len(parameters) == len(KERNELS[name][1])
    made.binaries.append(binary(name=name, code=name.encode(), shared_bytes=shared_bytes))
    return len(made.kernels) - 1


def launched(made: Made, name: str, *arguments: Any, **facts: Any) -> Node:
    return made.launch(kernel(made, name, **facts), (1, 1, 1), *arguments)


class Thread:
    """The process's side in a thread."""

    def __init__(self, card: HostCard) -> None:
        self.sock, theirs = socket.socketpair()
        self.number = 0
        memory: Any = bytearray(8)
        self.memory = memory

        def serve() -> None:
            with theirs, suppress(PeerGone, ContextLost):
                Executing(theirs, cast("Card", card), Progress(memory)).serve()

        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()

    def progress(self) -> int:
        return int.from_bytes(self.memory, "little")

    def end(self) -> None:
        self.sock.close()
        self._thread.join(5)


class Judge:
    """An executor on a made-up card, and a block."""

    def __init__(self) -> None:
        self.card = HostCard()
        self.executor = Executor(cast(Any, Thread(self.card)))
        self.executor.wait_ready(timeout_s=30)
        self.block = Block(1)

    def load(self, made: Made, *outputs: int) -> None:
        program = made.done(*outputs)
        self.executor.load(
            program,
            data_of(program),
            made.binaries,
            deadline=soon(),
            block_fd=self.block.fd,
            block_bytes=self.block.num_bytes,
        )

    def run(self, call: Call, *, placement: str = "start") -> RunReport:
        (report,) = self.executor.run([replace(call, placement=placement)], deadline=soon())
        return report
