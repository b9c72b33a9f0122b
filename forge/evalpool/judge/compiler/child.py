"""Compiles one kernel in the sandbox and ends. Forked by the zygote; the text may be hostile.

`python -m forge.evalpool.judge.compiler.child hip:gfx942` compiles a small kernel of our own, for
`forge.evalpool.cards`: exit 0 if Triton can compile for the target, else 1 and the reason in a
line. Triton accepts any name of an architecture, and the compiler may abort on it.

    judge ── CALL + memory (text, then room for the binary) ─▶ check, compile ── DONE | FAILED ──▶

The answer is a binary's header, the bytes of shared memory where the request needs them alone, or
a failure's kind, message and line. It proves nothing: the judge checks each field and reads the
binary itself. Uses nothing of a GPU.
"""

from __future__ import annotations

import mmap
import os
import re
import socket
import sys
import time
from typing import Any

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.compiler import backend
from forge.evalpool.judge.compiler.binary import FailureKind, warp_size_of
from forge.evalpool.judge.compiler.text import Refused, operations
from forge.evalpool.judge.program.format import Kernel, Options, Parameter

IDLE_S = 600.0
MAX_MESSAGE_CHARACTERS = 2000
_DIAGNOSTIC = re.compile(r'kernel\.ttir"?:(\d+):(\d+)\)?: (?:error: )?(.+)')
_ASSEMBLER = re.compile(r"^ptxas.*?error\s*: (.+)", re.MULTILINE)

WARM_TEXT = """module {
  tt.func public @warm(%arg0: !tt.ptr<f32>) attributes {noinline = false} {
    %0 = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %1 = tt.splat %arg0 : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %2 = tt.addptr %1, %0 : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %3 = tt.load %2 : tensor<64x!tt.ptr<f32>>
    %4 = arith.addf %3, %3 : tensor<64xf32>
    tt.store %2, %4 : tensor<64x!tt.ptr<f32>>
    tt.return
  }
}
"""


def warm_up(target: str) -> None:
    """Compiles a small kernel once in the zygote: tables that each child would otherwise build
    (a quarter of a small kernel's time). Starts no thread that outlives it."""
    kernel = Kernel(
        name="warm",
        ttir=WARM_TEXT,
        options=Options(),
        parameters=(Parameter(name="x", type="*fp32"),),
    )
    opened = backend.open_target(target)
    module = backend.check_ttir(kernel, opened)
    backend.lower(module, kernel, opened, key="0" * 64)


def main(sock: socket.socket) -> None:
    deadline = time.monotonic() + IDLE_S
    try:
        asked = frames.receive(sock, deadline=deadline, expected=(Kind.CALL,), takes_fds=True)
    except frames.PeerGone:
        return
    sys.setrecursionlimit(10_000)
    with mmap.mmap(asked.fds[0], asked.body["num_bytes"]) as memory:
        kind, body = answer(asked.body, memory)
    frames.send(sock, kind, body, timeout_s=IDLE_S)


def answer(request: dict[str, Any], memory: mmap.mmap) -> tuple[Kind, dict[str, Any]]:
    """Compiles what the memory holds, and puts the binary behind it."""
    text = memory[: request["text_bytes"]].decode("ascii")
    kernel = Kernel(
        name=request["name"],
        ttir=text,
        options=Options(**request["options"]),
        parameters=tuple(Parameter(name=one[0], type=one[1]) for one in request["parameters"]),
    )
    with _Words() as words:
        try:
            target = backend.open_target(request["target"])
            module = backend.check_ttir(kernel, target, is_rewritten=request["is_rewritten"])
            if request["needs_shared_alone"]:
                return Kind.DONE, {"shared_bytes": backend.shared_bytes(module, kernel, target)}
            binary = backend.lower(module, kernel, target, key=request["key"])
        except Exception as error:
            return Kind.FAILED, _failure(error, text, words.read())
    room = slice(request["code_at"], request["code_at"] + len(binary.code))
    memory[room] = binary.code
    return Kind.DONE, {"header": binary.header(), "code_bytes": len(binary.code)}


def _failure(error: Exception, text: str, words: str) -> dict[str, Any]:
    """Names the failure in MLIR's words, at the line of the text where that is known."""
    if isinstance(error, Refused):
        lines = (number for number, name in operations(text) if name == error.operation)
        kind, line, message = FailureKind.REFUSED, error.text_line or next(lines, 0), str(error)
    else:
        kind, found = FailureKind.COMPILE_ERROR, _DIAGNOSTIC.search(words)
        assembler = _ASSEMBLER.findall(str(error))
        message, line = "; ".join(dict.fromkeys(assembler)) or str(error), 0
        if found:
            is_late = isinstance(error, backend.CompileFailed)
            message = f"{found[3]} ({message})" if is_late else found[3]
            line = int(found[1])
    return {
        "kind": kind,
        "message": message[:MAX_MESSAGE_CHARACTERS],
        "text_line": line,
        "operation": getattr(error, "operation", ""),
    }


class _Words:
    """Standard error as a file: MLIR, LLVM and ptxas write their messages there."""

    def __enter__(self) -> _Words:
        self._saved = os.dup(2)
        self._file = open("words.txt", "w+b")  # in the scratch folder that a child stands in
        os.dup2(self._file.fileno(), 2)
        return self

    def read(self) -> str:
        self._file.seek(0)
        return self._file.read(1 << 16).decode(errors="replace")

    def __exit__(self, *_: object) -> None:
        os.dup2(self._saved, 2)
        os.close(self._saved)
        self._file.close()


def fault(name: str) -> str:
    """The reason why Triton cannot compile for a target; empty if it can."""
    try:
        warm_up(f"{name}:{warp_size_of(name)}")
    except Exception as error:
        return str(error).split("\n")[0]
    return ""


if __name__ == "__main__":
    found = fault(sys.argv[1])
    sys.stdout.write(f"{found}\n")
    sys.exit(bool(found))
