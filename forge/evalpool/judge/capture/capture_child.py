"""Untrusted: serves the judge in a sandboxed child without a GPU; captures candidates.

    main           one candidate, whatever it does
    serve_plain    one plain candidate after the other (`trial/host_code.py`): it starts nothing,
                   loads nothing, and finds compiled what an earlier one compiled

Forked by the zygote, which has called `warm_up()` and forgets forge's modules before this
runs: nothing here imports anything later. Sends nothing but the candidate's own program, its
questions or its failure.
"""

from __future__ import annotations

import gc
import linecache
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from triton.runtime import jit

from forge.evalpool.judge.capture import exchange
from forge.evalpool.judge.capture.exchange import Ask, CaptureFailed, Unsupported
from forge.evalpool.judge.capture.pretence import Card
from forge.evalpool.judge.capture.session import capture
from forge.evalpool.judge.capture.stage import Stage
from forge.evalpool.judge.channel import frames, heap
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import Program

# --- warm-up: loads and exercises once, in the zygote, what each capture would otherwise load
#
# Starts no thread, makes no context, and leaves torch as it was: oracles are forked from there.


CODE = """
import torch
import triton
import triton.language as tl


@triton.jit
def _half(x):
    return x * 0.5


@triton.jit
def _rows(x, w, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    value = tl.load(x + row * n + columns, mask=mask, other=-float("inf"))
    value = tl.exp(value - tl.max(value, axis=0))
    total = tl.sum(value, axis=0)
    scale = tl.load(w + columns, mask=mask)
    value = _half(tl.where(value > 0, value / total, 0.0)) * scale
    tl.store(y + row * n + columns, value, mask=mask)


@triton.jit
def _dots(a, b, c, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        left = tl.load(a + i[:, None] * n + (start + k)[None, :])
        right = tl.load(b + (start + k)[:, None] * n + i[None, :])
        total += tl.dot(left, right)
    tl.store(c + i[:, None] * n + k[None, :], tl.maximum(total, 0.0))


class ModelNew(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)
        self.packed = self.linear.weight.t().contiguous()

        self.register_buffer("table", torch.arange(size, dtype=torch.float32) / size)

    def forward(self, x):
        x = x.contiguous().view(x.shape[0], -1)
        w = torch.randn(4, 4, device=x.device) * 2 + 1
        w = (w @ w.t()).sum(dim=-1, keepdim=True).expand(4, 4).reshape(-1)
        w = torch.cat([w, torch.ones_like(w)]).permute(0).unsqueeze(0).clone().mul_(0.5).to(x.dtype)
        torch.empty_strided((2, 2), (2, 1), dtype=torch.float16, device="cuda").fill_(1)
        x.new_empty(3).zero_().copy_(torch.tensor([1.0, 2.0, 3.0], device=x.device))
        y = torch.empty_like(x)
        rows, n = x.shape
        _rows[(rows,)](x, self.linear.bias, y, n, BLOCK=triton.next_power_of_2(n))
        z = torch.zeros(x.shape, device=x.device)
        _dots[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](y, self.packed, z, n, BLOCK=16)
        return z[1:], z.to(torch.float16)
"""


def warm_up() -> None:
    """Captures a candidate with common constructs; afterwards the process answers as before."""
    request = {
        "entry_point": "ModelNew", "init": ["list", [["value", 32]]],
        "inputs": ["list", [["tensor", 2]]], "order": ["linear.weight", "linear.bias"],
        "state": [["linear.weight", 0], ["linear.bias", 1]],
        "tensors": [["float32", [32, 32], 0], ["float32", [32], 0], ["float32", [32, 32], 0]],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        capture(request, CODE, file=str(Path(folder) / "candidate.py"))
    Stage.get().end()
    Stage.get().lowering.make_ahead(Card().triton_target())


COLLECTED_EVERY = 8
"""Plain candidates behind which Python collects what refers to itself: it takes 2 ms."""
MAX_GROWTH_BYTES = 256 << 20
"""Address space that plain candidates may leave in use: a later one would find none, and be blamed.
A module's tensors last until its functions, which refer to it, are collected."""


def main(sock: socket.socket, *, file: str) -> None:
    """Captures the candidate of one CANDIDATE frame. Its body is the request of
    `session.capture`, with `code`."""
    request = frames.asked(sock, Kind.CANDIDATE).body

    def ask(program: Program) -> Any:
        exchange.send_program(sock, Kind.ASK, {}, wire.dumps(program))
        found = frames.asked(sock, Kind.ANSWER).body["answer"]
        if found is None:
            words = "the judge cannot read this value: compute on the device, without .item()"
            raise Unsupported(f"{words} or bool()")
        return found

    _report(sock, request, ask=ask, file=file)


def serve_plain(sock: socket.socket, *, file: str) -> None:
    """Captures the plain candidate of one CANDIDATE frame after the other, and forgets each on
    RELEASE. Asks the judge nothing: a candidate with a question fails as unsupported. Returns, so
    that the process ends, where candidates have left too much in use."""
    drawn = torch.get_rng_state()
    most = heap.mapped_bytes() + MAX_GROWTH_BYTES
    count = 0
    while True:
        request = frames.asked(sock, Kind.CANDIDATE).body
        _report(sock, request, ask=None, file=file)
        del request
        frames.asked(sock, Kind.RELEASE)
        _forget(file)
        torch.set_rng_state(drawn)
        count += 1
        if not count % COLLECTED_EVERY or heap.mapped_bytes() > most:
            gc.collect()
        if heap.mapped_bytes() > most:
            return
        frames.send(sock, Kind.DONE, {})


def _report(sock: socket.socket, request: dict[str, Any], *, ask: Ask | None, file: str) -> None:
    notes: dict[str, Any] = {}
    try:
        data = wire.dumps(capture(request, request["code"], ask=ask, file=file, notes=notes))
    except CaptureFailed as error:
        frames.send(sock, Kind.FAILED, error.body())
        return
    exchange.send_program(sock, Kind.DONE, notes, data)


def _forget(file: str) -> None:
    """Takes a plain candidate's module out of the tables of Python and Triton."""
    Stage.get().end()
    sys.modules.pop("candidate", None)
    linecache.cache.pop(file, None)
    names: Any = getattr(jit, "_triton_jit_function_registry", {})  # not in Triton 3.6
    for name in [name for name in names if name.startswith("candidate:")]:
        del names[name]
