# pyright: strict
"""Rewrites a kernel so that each access is checked against the storages of its pointers.

A card faults only outside of its mapped pages (2 MiB), and `tt.addptr` reaches whatever is mapped.
The rewritten kernel compares each address with the bounds of every pointer argument of the launch.
A lane that is outside goes to a sink instead, and the access's number to a fault word. It runs once
for each launch beside the real one; its time means nothing.

    kernel(p, n) ─▶ kernel(p, n, lo: i64, hi: i64, fault: *i32, sink: *i8)

One pair of bounds for each pointer parameter, in order: addresses of the storage's first byte and
of the byte behind its last. A null pointer has 0 and 0. `fault` is one word, 0 before the launch;
afterwards it is the largest number of an access that left its bounds, from 1, or 0. `sink` has
SINK_BYTES. Text in, text out: the text must be as MLIR prints it, after inlining, and without
descriptors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from forge.evalpool.judge.compiler.text import operations

SINK_BYTES = 64
ITEM_BYTES = {
    **{"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8},
    **{"f8E4M3FN": 1, "f8E5M2": 1, "f8E4M3FNUZ": 1, "f8E5M2FNUZ": 1, "f8E4M3B11FNUZ": 1},
}
CHECKED = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2, "tt.atomic_cas": 3}
"""Operations that are rewritten, with the position of a mask among their operands."""
UNKNOWN = re.compile(r"\btt\.(descriptor_\w+|make_tensor_descriptor|atomic_(load|store|poll)|call)")
_HEADER = re.compile(r"(  tt\.func public @[\w$]+\()(.*)(\) attributes \{.*)")
_PARAMETER = re.compile(r"%\w+: ([^,{]*?(?:<[^{]*?>)?)(?: \{[^}]*\})?(?:, |$)")
_ACCESS = re.compile(r"(?P<indent> *)(?:%[\w:]+ = )?(?P<name>tt\.\w+) ")
_OPERAND = re.compile(r"%[\w$.#-]+")
_POINTERS = re.compile(r"(?:tensor<(?P<shape>(?:\d+x)+))?!tt\.ptr<(?P<element>\w+)>")


class Unbounded(Exception):
    """A kernel has an access that cannot be rewritten."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A rewritten kernel."""

    text: str
    rows: tuple[int, ...]
    """Line of the given text, from 1, of each access: the access with number n is `rows[n - 1]`."""
    num_pointers: int
    """Pointer parameters, each with a pair of bounds."""


def with_bounds(text: str) -> Bounded:
    """Raises Unbounded."""
    unknown = UNKNOWN.search(text)
    if unknown or text.count("tt.func ") != 1:
        raise Unbounded(f"{unknown[0] if unknown else 'several functions'} in a checked kernel")
    places = {row for row, name in operations(text) if name in CHECKED}
    lines = text.split("\n")
    made: list[str] = []
    rows: list[int] = []
    num_pointers = 0
    for row, line in enumerate(lines, 1):
        header = _HEADER.fullmatch(line)
        if header:
            types = [one[1] for one in _PARAMETER.finditer(header[2])]
            num_pointers = sum(one.startswith("!tt.ptr") for one in types)
            added = [f"%lo{i}: i64, %hi{i}: i64" for i in range(num_pointers)]
            added += ["%fault: !tt.ptr<i32>", "%sink: !tt.ptr<i8>"]
            line = header[1] + ", ".join([*([header[2]] if header[2] else []), *added]) + header[3]
        elif row in places:
            rows.append(row)
            line = _rewritten(line, number=len(rows), num_pointers=num_pointers)
        made.append(line)
    return Bounded(text="\n".join(made), rows=tuple(rows), num_pointers=num_pointers)


def _rewritten(line: str, *, number: int, num_pointers: int) -> str:
    """The access with its pointer checked, behind the lines that check it."""
    head = _ACCESS.match(line)
    types = _POINTERS.search(line)
    assert head is not None
    if types is None or types["element"] not in ITEM_BYTES:
        raise Unbounded(f"access through {line.rsplit(' : ', 1)[-1]}")
    operands = _operands(line[head.end() :])
    at = CHECKED[head["name"]]
    has_mask = head["name"] != "tt.atomic_cas" and len(operands) > at
    check = _Check(number, types["shape"] or "", types["element"])
    rows = check.lines(operands[0], operands[at] if has_mask else None, num_pointers)
    start = line.index(operands[0], head.end())
    access = f"{line[:start]}{check.value('pointer')}{line[start + len(operands[0]) :]}"
    return "\n".join([*(head["indent"] + row for row in rows), access])


def _operands(rest: str) -> list[str]:
    """Values before the attributes and types of an access."""
    until = min(at for at in (rest.find(" : "), rest.find(" {"), len(rest)) if at >= 0)
    return _OPERAND.findall(rest[:until])


@dataclass(frozen=True, slots=True)
class _Check:
    """The lines that check one access."""

    number: int
    shape: str
    """`128x` of a block of pointers; empty for one pointer."""
    element: str

    def value(self, name: str) -> str:
        return f"%{name}_{self.number}"

    def type(self, element: str) -> str:
        return f"tensor<{self.shape}{element}>" if self.shape else element

    def lines(self, pointer: str, mask: str | None, num_pointers: int) -> list[str]:
        kind, v, t = f"!tt.ptr<{self.element}>", self.value, self.type
        made = [
            f"{v('address')} = tt.ptr_to_int {pointer} : {t(kind)} -> {t('i64')}",
            *self._constant("size", ITEM_BYTES[self.element], "i64"),
            *self._constant("ok0", 0, "i1"),
        ]
        for i in range(num_pointers):
            made += self._inside(i)
        ok = v(f"ok{num_pointers}")
        sink = "%sink"
        if self.element != "i8":
            sink = v("sink")
            made.append(f"{sink} = tt.bitcast %sink : !tt.ptr<i8> -> {kind}")
        sink = self._spread(made, "aside", sink, kind)
        word = self._spread(made, "word", "%fault", "!tt.ptr<i32>")
        made += self._constant("number", self.number, "i32")
        made += self._constant("all", 1, "i1")
        made.append(f"{v('bad')} = arith.xori {ok}, {v('all')} : {t('i1')}")
        bad = v("bad")
        if mask is not None:
            bad = v("fault")
            made.append(f"{bad} = arith.andi {v('bad')}, {mask} : {t('i1')}")
        choice = t("i1") + ", " if self.shape else ""
        made.append(f"{v('pointer')} = arith.select {ok}, {pointer}, {sink} : {choice}{t(kind)}")
        made.append(
            f"{v('old')} = tt.atomic_rmw umax, relaxed, gpu, {word}, {v('number')}, {bad} : "
            f"({t('!tt.ptr<i32>')}, {t('i32')}, {t('i1')}) -> {t('i32')}"
        )
        return made

    def _inside(self, i: int) -> list[str]:
        """Adds the lanes within the bounds of pointer `i`: at or behind the first byte, before the
        end, and with room for an element."""
        v, wide, bits = self.value, self.type("i64"), self.type("i1")
        made: list[str] = []
        low = self._spread(made, f"low{i}", f"%lo{i}", "i64")
        high = self._spread(made, f"high{i}", f"%hi{i}", "i64")
        a, b, c, room = (v(f"{name}{i}") for name in ("a", "b", "c", "room"))
        return [
            *made,
            f"{a} = arith.cmpi uge, {v('address')}, {low} : {wide}",
            f"{b} = arith.cmpi ult, {v('address')}, {high} : {wide}",
            f"{room} = arith.subi {high}, {v('address')} : {wide}",
            f"{c} = arith.cmpi uge, {room}, {v('size')} : {wide}",
            f"{v(f'ab{i}')} = arith.andi {a}, {b} : {bits}",
            f"{v(f'abc{i}')} = arith.andi {v(f'ab{i}')}, {c} : {bits}",
            f"{v(f'ok{i + 1}')} = arith.ori {v(f'ok{i}')}, {v(f'abc{i}')} : {bits}",
        ]

    def _constant(self, name: str, value: int, element: str) -> list[str]:
        word = str(value) if element != "i1" else ("true" if value else "false")
        if self.shape:
            return [f"{self.value(name)} = arith.constant dense<{word}> : {self.type(element)}"]
        kind = "" if element == "i1" else f" : {element}"
        return [f"{self.value(name)} = arith.constant {word}{kind}"]

    def _spread(self, made: list[str], name: str, value: str, kind: str) -> str:
        """A block of one value; the value itself for one pointer."""
        if not self.shape:
            return value
        made.append(f"{self.value(name)} = tt.splat {value} : {kind} -> {self.type(kind)}")
        return self.value(name)
