# pyright: strict
"""Words of a kernel's text, checked against the closed list before anything parses it.

MLIR's walk names operations, but not attributes, types or dialects' literals; the words of the
printed text do. The compiler's child demands that a text is exactly what MLIR prints for it, so
nothing can stand in a text that this file reads in another way than MLIR does.

Also here: kernels whose tiles may need more shared memory than a card has, by a glance at their
text. Triton stages the operands of products and the blocks of descriptors `num_stages` times, and
moves a block through shared memory where its layout changes or elements are gathered; blocks of one
axis only for the latter. `may_exceed` is never too little for that, and often too much; no verdict
rests on it: `compile.py` has Triton tell the bytes of those.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from forge.evalpool.judge.program import dialect
from forge.evalpool.judge.program.format import Kernel

_TOKEN = re.compile(
    r"""
      (?P<skipped>(?>
          \s++                                                 # space
        | ->|[-:,=(){}<>\[\]*+]                                # mark
        | [%^][\w.$-]++(?:\#\d++|:\d++)?                       # value or block
        | @(?:"(?:[^"\\\n]|\\.)*+"|[A-Za-z_][\w.$]*+)        # symbol
        | 0x[0-9A-Fa-f]++ | (?:\d++x)++(?=[A-Za-z!])           # hexadecimal, dimensions
        | \d++(?:\.\d*+)?(?:[eE][+-]?\d++)?                   # number
        | //[^\n]*+                                           # comment
      )++)
    | (?P<word>[#!]?[A-Za-z_][\w.$]*+)
    | (?P<string>"(?:[^"\\\n]|\\.)*+")
    | (?P<other>.)
    """,
    re.VERBOSE | re.ASCII,
)
_BEFORE_STRING = re.compile(
    r"(?:=|\btt\.print|\btt\.assert %[\w.$#-]+,|\btt\.elementwise_inline_asm) $", re.ASCII
)
"""Marks before a string that is a value, a message, a template or the name of an operation. A name
of an attribute may be quoted too (`"ttg.num-warps"`), and such names are refused."""
_POINTER = re.compile(r'!tt\.ptr<(?:tensor<(?:\d+x)+)?(\w+)(?:, "constant")?>')
_BEFORE_SPACE = re.compile(r"<\w+, $", re.ASCII)
"""Text before the address space of a `tl.const` pointer, `!tt.ptr<f32, "constant">` or, elided,
`<f32, "constant">` (Triton 3.9 and later). Its memory is global memory."""
_OPERATION = re.compile(r'(?:%[\w.$:-]+ = )?"?([a-z]\w*\.[\w.]+|module\b)', re.ASCII)


class Refused(Exception):
    """A kernel is outside the closed list."""

    def __init__(self, operation: str, reason: str, *, text_line: int = 0) -> None:
        super().__init__(f"{operation}: {reason}" if operation else reason)
        self.operation = operation
        self.text_line = text_line
        """Line of the text, from 1; 0 where unknown."""


def check_text(text: str) -> None:
    """Raises Refused where a word, type or mark of a TTIR text is outside the closed list."""
    if not text.isascii():
        raise Refused("", "text is not ASCII")
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "word":
            found = match[0]
            if found not in dialect.WORDS:
                raise _refused(text, match.start(), f"{found!r} is not in the closed list")
            if found == "!tt.ptr":  # to global memory: elements or a block; never to pointers
                pointer = _POINTER.match(text, match.start())
                if pointer is None or pointer[1] not in dialect.ELEMENTS:
                    shown = text[match.start() : match.start() + 40].split()[0]
                    raise _refused(text, match.start(), f"type {shown!r}")
        elif kind == "string":
            _check_string(text, match)
        elif kind == "other":
            raise _refused(text, match.start(), f"character {match[0]!r}")


def operations(text: str) -> Iterator[tuple[int, str]]:
    """Yields line number (from 1) and name of each operation of a printed module, which has one in
    a line, `tt.func` and `builtin.module` included."""
    for number, line in enumerate(text.split("\n"), 1):
        match = _OPERATION.match(line.strip())
        if match:
            yield number, "builtin.module" if match[1] == "module" else match[1]


def source_line(text: str, lines: Sequence[int], text_line: int) -> int:
    """Line of the candidate's source of the operation at or before a line of the text; 0 where
    unknown. `lines` has one for each operation."""
    before = sum(number <= text_line for number, _ in operations(text)) if lines else 0
    return lines[before - 1] if 0 < before <= len(lines) else 0


def without(text: str, names: frozenset[str]) -> str:
    """Returns the text without these operations, which have neither results nor regions."""
    gone = {number for number, name in operations(text) if name in names}
    if not gone:
        return text
    lines = text.split("\n")
    return "\n".join(line for number, line in enumerate(lines, 1) if number not in gone)


def _check_string(text: str, match: re.Match[str]) -> None:
    """A string is no attribute's name."""
    before = text[max(match.start() - 24, 0) : match.start()]
    if match[0] == '"constant"' and _BEFORE_SPACE.search(before) and text[match.end()] == ">":
        return
    line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
    is_first = not line.strip() and text.startswith("(", match.end())
    if not is_first and not _BEFORE_STRING.search(line):
        raise _refused(text, match.start(), f"{match[0][:80]} where no text may be")
    if text[match.end() : match.end() + 2].strip().startswith("="):
        raise _refused(text, match.start(), f"attribute {match[0][:80]}")


def _refused(text: str, at: int, reason: str) -> Refused:
    start = text.rfind("\n", 0, at) + 1
    match = _OPERATION.match(text[start : start + 400].strip())
    return Refused(match[1] if match else "", reason, text_line=text.count("\n", 0, at) + 1)


# --- tiles


_TILE = re.compile(r"\btensor<((?:\d{1,9}x){1,8})[a-z]+(\d{1,3})?", re.ASCII)
_DESCRIBED = re.compile(r"tensordesc<((?:\d{1,9}x){1,8})[a-z]+(\d{1,3})?", re.ASCII)
_STAGES = re.compile(r"tt\.num_stages = (\d{1,3})", re.ASCII)
STAGED = ("tt.dot", "tt.descriptor_load", "tt.descriptor_gather")
GATHERED = ("tt.gather", "tt.histogram")
POINTER_BYTES = 8


def may_exceed(kernel: Kernel, limit: int) -> bool:
    """True unless the tiles of a kernel surely fit."""
    stages = [kernel.options.num_stages, *map(int, _STAGES.findall(kernel.ttir))]
    staged = largest = 0
    for line in kernel.ttir.split("\n"):
        is_gathered = any(name in line for name in GATHERED)
        blocks = (*_TILE.findall(line), *_DESCRIBED.findall(line))
        tiles = [_num_bytes(*one, least_axes=1 if is_gathered else 2) for one in blocks]
        if any(name in line for name in STAGED):
            staged += sum(tiles)
        largest = max([largest, *tiles, sum(tiles) if is_gathered else 0])
    return staged * max(stages) + largest > limit


def _num_bytes(sizes: str, bits: str, *, least_axes: int) -> int:
    """Bytes of a block; 0 for one of fewer axes, which goes lane by lane."""
    shape = [int(size) for size in sizes.split("x")[:-1]]
    if len(shape) < least_axes:
        return 0
    return math.prod(shape) * max(int(bits or 8 * POINTER_BYTES), 8) // 8
