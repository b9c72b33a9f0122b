"""Draws compositions: endless, the same for a seed and a number on every machine; and their source,
`compositions:NUMBER[@SEED]`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from forge.data.harvest.kernelbench import marks
from forge.data.harvest.records import Found
from forge.data.harvest.sources.compositions.operations import (
    convolution,
    follow,
    image_input,
    lone_product,
    norm,
    pointwise,
    pool,
    product,
    reduce,
    running,
    single,
    softmax,
)
from forge.data.harvest.sources.compositions.writer import (
    ModuleWriter,
    SizeDraw,
    Value,
    section,
)
from forge.errors import ConfigError

NUM_OPERATIONS = {1: 40, 2: 20, 3: 18, 4: 12, 5: 7, 6: 3}
"""Shares of the compositions by number of operations."""
BANDWIDTH, RATE = 4.8e12, 60e12
"""Bytes and floating-point operations a second of an H200, the fastest card in use."""
WANTED_S = 120e-6
"""Time of a composition at large sizes, with a margin over 100 us."""
MAX_BYTES, MAX_ELEMENTS = 3_000_000_000, 1 << 28
"""Inputs, parameters and outputs together, and one tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedModule:
    """One module, and definitions of its constants at other sizes."""

    level: int
    ops: tuple[str, ...]
    """Names of its operations in order."""
    text: str
    other: str
    """Other small sizes, where the constructor does not get them."""
    large: str
    """Sizes that keep a card busy for 100 us."""


def compose(seed: int, number: int) -> ComposedModule:
    """The composition of a number."""
    key = f"{seed}/{number}"
    num = Random(key).choices(list(NUM_OPERATIONS), weights=list(NUM_OPERATIONS.values()))[0]
    small, text = _write(key, num, SizeDraw(key))
    while _is_kernelbenchs(small.ops, text):
        key += "/again"
        small, text = _write(key, num, SizeDraw(key))
    other = _write(key, num, SizeDraw(key, is_other=True))[0].sizes
    return ComposedModule(
        level=1 if num == 1 else 2, ops=tuple(small.ops), text=text,
        other=_definitions({n: v for n, v in other.items() if n not in small.fixed}, text),
        large=_definitions(_large(key, num), text),
    )  # fmt: skip


def _is_kernelbenchs(ops: Sequence[str], text: str) -> bool:
    """True if KernelBench has the composition, in these words or in others."""
    is_told = summary(ops) in section("kernelbench")["level_2"].forms
    return is_told or marks().same_operations(ast.parse(text)) is not None


_WORDS = {
    "mul_parameter": "scale", "div_parameter": "scale", "shift": "add", "add_parameter": "add",
    "sub_parameter": "add", "residual": "add", "other_input": "add", "silu": "swish", "amax": "max",
    "amin": "min", "maximum": "max", "minimum": "min", "max_parameter": "max",
    "global_mean": "globalavgpool",
}  # fmt: skip
"""Words of a summary for operations that have other names."""


def summary(ops: Sequence[str]) -> str:
    """The operations in the words of KernelBench's level 2, separated by spaces."""
    words: list[str] = []
    for name in ops:
        if match := re.match(r"conv(_transpose)?(\d)d", name):
            words.append(f"conv{'transpose' if match[1] else ''}{match[2]}d")
        elif name.startswith(("linear", "matmul")):
            words.append("gemm")
        else:
            words.append(_WORDS.get(name, name.replace("_", "")))
    return " ".join(words)


def _definitions(sizes: Mapping[str, int], text: str) -> str:
    """The sizes that the text has, as lines of it."""
    return "\n".join(f"{n} = {v}" for n, v in sizes.items() if f"\n{n} = " in text)


def _large(key: str, num: int) -> Mapping[str, int]:
    """Sizes whose batch makes the time, within the room."""
    factor = 1.0
    w = _write(key, num, SizeDraw(key, factor=factor))[0]
    for _ in range(8):
        seconds = w.num_bytes / BANDWIDTH + w.flops / RATE
        room = min(MAX_BYTES / w.num_bytes, MAX_ELEMENTS / w.largest)
        if room < 1:
            factor *= 0.9 * room
        elif seconds < WANTED_S and room > 1.5:
            factor *= min(8.0, 0.9 * room, 1.1 * WANTED_S / seconds)
        else:
            break
        w = _write(key, num, SizeDraw(key, factor=factor))[0]
    return w.sizes


def _write(key: str, num: int, sizes: SizeDraw) -> tuple[ModuleWriter, str]:
    writer = ModuleWriter(Random(key), sizes)
    return writer, writer.finish(_lone(writer) if num == 1 else _chain(writer, num))


def _lone(w: ModuleWriter) -> Value:
    """One operation."""
    kinds = {
        "table": 26, "convolution": 28, "product": 14, "reduction": 9, "pool": 8, "pointwise": 7,
        "norm": 5, "softmax": 2, "running": 1,
    }  # fmt: skip
    kind = w.rng.choices(list(kinds), weights=list(kinds.values()))[0]
    if kind == "table":
        return single(w)
    if kind in ("convolution", "product"):
        return w.read(lone_product(w) if kind == "product" else convolution(w))
    if kind == "pool":
        return pool(w, image_input(w, w.rng.choice((1, 2, 3))))
    x = _tensor(w, IMAGES if kind == "norm" else TENSORS)
    if kind == "reduction":
        return reduce(w, x, at=(w.rng.randrange(x.rank),))
    names = [*section("activations")] * 3 + [*section("elementwise")]
    steps = {
        "norm": norm, "softmax": softmax, "running": running,
        "pointwise": lambda w, x: pointwise(w, x, w.rng.choice(names)),
    }  # fmt: skip
    return steps[kind](w, x)


TENSORS = (*("BD", "BTD", "BTD", "BCHW", "MD", "BGTK", "BCL", "BCZHW", "BL", "BIJ", "BIJ", "BFIJ"),)
IMAGES = (*("BFIJ", "BFIJ", "BCHW", "BCHW", "BCL", "BCZHW", "BD", "BTD", "MD"),)
"""Letters of the sizes of an input: of any, and of one that a norm takes."""


def _tensor(w: ModuleWriter, shapes: Sequence[str] = TENSORS) -> Value:
    """An input of one of the shapes."""
    letters = w.rng.choice(shapes)
    w.is_volume = "Z" in letters
    x = w.input([w.size(letter) for letter in letters])
    return replace(x, is_channels_first=letters[1] in "CF", is_positive=False)


def _chain(w: ModuleWriter, num: int) -> Value:
    """Several operations; of four, three begin with a product or a convolution."""
    if w.rng.random() < 0.75:
        x = w.read(product(w) if w.rng.random() < 0.45 else convolution(w))
    else:
        x = _tensor(w)
    first: Value | None = None
    while len(w.ops) < num:
        if w.ops and not first and w.rng.random() < 0.3 and num - len(w.ops) > 1 and x.rank > 1:
            name = w.rng.choice(("residual", "identity", "skip", "saved", "shortcut"))
            x, first = w.kept(x, name)
        before = x
        w.note(x)
        x = follow(w, x, first)
        if before.dims != x.dims:
            first = first if first is not None and first.dims == x.dims else None
    return x


PART = 100
"""Compositions of a unit: 0.15 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compositions:
    """The first compositions of a seed. A unit is a range of them."""

    num: int
    seed: int

    @property
    def name(self) -> str:
        """With the seed, so that the problems of two harvests have ids of their own."""
        return f"compositions@{self.seed}"

    def facts(self) -> dict[str, Any]:
        return {"source": "compositions", "num": self.num, "seed": self.seed}

    def units(self) -> Sequence[str]:
        return [str(start) for start in range(0, self.num, PART)]

    def read(self, unit: str) -> Iterator[Found]:
        for number in range(int(unit), min(int(unit) + PART, self.num)):
            made = compose(self.seed, number)
            yield Found(
                text=made.text, origin=str(number), name="_".join(made.ops),
                kind=f"compositions level {made.level}", level=made.level,
                others=(made.other,) if made.other else (), large=made.large,
            )  # fmt: skip


def open_compositions(rest: str) -> Compositions:
    """The source that `compositions:REST` names. Raises ConfigError for another form."""
    match = re.fullmatch(r"([1-9]\d*)(?:@(\d+))?", rest)
    if match is None:
        raise ConfigError(
            f"compositions:{rest}: expected compositions:NUMBER or compositions:NUMBER@SEED, "
            "such as compositions:5000@7"
        )
    return Compositions(num=int(match[1]), seed=int(match[2] or 0))
