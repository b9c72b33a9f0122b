"""Texts of the judge for the model: short, with the failing line, without paths and escapes.

Called where a verdict is made. What a candidate raised is quoted under the judge's own prefix.
"""

from __future__ import annotations

import os
import re
import signal

MAX_DETAIL_CHARACTERS = 2000
TYPICAL_CHARACTERS = 300
"""Messages are cut here: a small model has to read them."""
MAX_LINE_CHARACTERS = 100

_CONTROL = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, and halves of surrogate pairs, which JSON cannot carry."""
_PATH = re.compile(r"(?<![\w)\].])(?:/[\w.+-]+){2,}")
"""An absolute path; `a/b/c` is a division."""
_OUT_OF_MEMORY = (
    "MemoryError",
    "can't allocate memory",
    "not enough memory",
    "Cannot allocate memory",
    "CUDA error: out of memory",
)
_NO_CARD = re.compile(
    "not compiled with CUDA|from the 'CUDA' backend|access accelerator device|No CUDA GPUs"
    "|Found no NVIDIA driver|no CUDA-capable device|requires CUDA support|without ATen_cuda library"
)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")
"""The address in an object's default representation, which differs between processes."""
SIGNALS: dict[int, str] = {
    signal.SIGSEGV: "segmentation fault (a load or store out of bounds?)",
    signal.SIGBUS: "bus error (a load or store out of bounds?)",
    signal.SIGABRT: "aborted (memory corrupted by a store out of bounds?)",
    signal.SIGFPE: "arithmetic fault (integer division by zero?)",
    signal.SIGKILL: "killed (out of memory?)",
    signal.SIGSYS: "killed for a forbidden system call",
}


def is_out_of_memory(text: str) -> bool:
    return any(part in text for part in _OUT_OF_MEMORY)


def needs_card(text: str) -> bool:
    return _NO_CARD.search(text) is not None


def clean(text: str, *, limit: int = MAX_DETAIL_CHARACTERS) -> str:
    """Printable text, not too long, without control characters and addresses of objects."""
    text = _ADDRESS.sub("", _CONTROL.sub(" ", text))
    text = "\n".join(line.rstrip() for line in text.strip().split("\n") if line.strip())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def without_paths(text: str) -> str:
    """The text of an error, with paths cut to their last part."""
    return _PATH.sub(lambda found: os.path.basename(found.group()), text)


def at_line(code: str, line: object, message: str, *, limit: int = TYPICAL_CHARACTERS) -> str:
    """`line 12: y = foo(x)` and the message below it; the message alone where no line is known."""
    message = clean(without_paths(message), limit=limit)
    lines = code.split("\n")
    if not isinstance(line, int) or not 0 < line <= len(lines):
        return message
    source = clean(lines[line - 1].strip(), limit=MAX_LINE_CHARACTERS)
    return f"line {line}: {source}\n{message}"


def exit_in_words(status: int, *, who: str) -> str:
    """Message for a process that ended by itself, from its wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"{who} crashed: {SIGNALS.get(number, f'signal {number}')}"
    return f"{who} ended its process (exit {os.WEXITSTATUS(status)})"
