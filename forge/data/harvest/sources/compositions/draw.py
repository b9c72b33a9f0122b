"""Draws compositions: endless, the same for a seed and a number on every machine; and their source,
`compositions:NUMBER[@SEED]`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from forge.data.harvest.records import Found
from forge.data.harvest.sources.compositions.products import convolution, image_input, product
from forge.data.harvest.sources.compositions.singles import single
from forge.data.harvest.sources.compositions.steps import (
    clamp,
    extreme,
    follow,
    norm,
    parameter,
    pointwise,
    pool,
    reduce,
    residual,
    running,
    scale,
    shift,
    softmax,
)
from forge.data.harvest.sources.compositions.values import SizeDraw, SizeScale, Value
from forge.data.harvest.sources.compositions.vocabulary import section
from forge.data.harvest.sources.compositions.writer import ModuleWriter
from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


LEVELS = {1: 0.5, 2: 0.5}
"""Share of each of KernelBench's levels; models, its third, come from other sources."""
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
    level, small, text = _write(key, SizeDraw(key, SizeScale.SMALL))
    while summary(small.ops) in section("kernelbench")["level_2"].forms:
        key += "/again"
        level, small, text = _write(key, SizeDraw(key, SizeScale.SMALL))
    other = _write(key, SizeDraw(key, SizeScale.OTHER))[1].sizes
    return ComposedModule(
        level=level, ops=tuple(small.ops), text=text,
        other=_definitions({n: v for n, v in other.items() if n not in small.fixed}, text),
        large=_definitions(_large(key), text),
    )  # fmt: skip


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


def _large(key: str) -> Mapping[str, int]:
    """Sizes whose batch makes the time, within the room."""
    factor = 1.0
    w = _write(key, SizeDraw(key, SizeScale.LARGE))[1]
    for _ in range(8):
        seconds = w.num_bytes / BANDWIDTH + w.flops / RATE
        room = min(MAX_BYTES / w.num_bytes, MAX_ELEMENTS / w.largest)
        if room < 1:
            factor *= 0.9 * room
        elif seconds < WANTED_S and room > 1.5:
            factor *= min(8.0, 0.9 * room, 1.1 * WANTED_S / seconds)
        else:
            break
        w = _write(key, SizeDraw(key, SizeScale.LARGE, factor=factor))[1]
    return w.sizes


def _write(key: str, sizes: SizeDraw) -> tuple[int, ModuleWriter, str]:
    rng = Random(key)
    writer = ModuleWriter(rng, sizes)
    level = rng.choices(list(LEVELS), weights=list(LEVELS.values()))[0]
    value = {1: _level_1, 2: _level_2}[level](writer)
    return level, writer, writer.finish(value)


def _level_1(w: ModuleWriter) -> Value:
    """One operation, or a simple one with another that makes it differ from KernelBench's."""
    kinds = {
        "table": 24, "pointwise": 8, "norm": 10, "reduction": 8, "pool": 7, "softmax": 3,
        "convolution": 24, "product": 16,
    }  # fmt: skip
    kind = w.rng.choices(list(kinds), weights=list(kinds.values()))[0]
    if kind == "table":
        return single(w)
    if kind in ("convolution", "product"):
        return _small(w, w.read(product(w) if kind == "product" else convolution(w)))
    if kind == "pool":
        return _beside(w, image_input(w, w.rng.choice((1, 2, 3))), pool)
    letters = w.rng.choice(("BD", "BTD", "BTD", "BCHW", "MD", "BGTK", "BCL", "BCZHW", "BL"))
    x = w.input([w.size(letter) for letter in letters])
    x = replace(x, is_channels_first="C" in letters)
    names = [*section("activations"), *section("elementwise")]
    step = {
        "pointwise": lambda w, x: pointwise(w, x, w.rng.choice(names)),
        "norm": norm,
        "reduction": reduce if w.rng.random() < 0.8 else running,
        "softmax": softmax,
    }[kind]
    return _beside(w, x, step)


def _small(w: ModuleWriter, x: Value) -> Value:
    """A small operation that bears any value."""
    options: list[Callable[[], Value]] = [
        lambda: scale(w, x), lambda: shift(w, x), lambda: clamp(w, x), lambda: extreme(w, x),
        lambda: pointwise(w, x, w.rng.choice(list(section("activations")))),
        lambda: pointwise(w, x, w.rng.choice(list(section("elementwise")))),
        lambda: residual(w, x, None),
    ]  # fmt: skip
    if x.rank > 1 and x.dims[x.channel].text not in ("", "1"):
        options.append(lambda: parameter(w, x))
    return w.rng.choice(options)()


def _beside(w: ModuleWriter, x: Value, step: Callable[[ModuleWriter, Value], Value]) -> Value:
    """The step with a small operation before or after it."""
    x = replace(x, is_positive=False)
    return step(w, _small(w, x)) if w.rng.random() < 0.5 else _small(w, step(w, x))


MAX_STEPS = (2, 2, 2, 3, 3, 4, 5)


def _level_2(w: ModuleWriter) -> Value:
    """A product or a convolution, and two to five operations."""
    x = product(w) if w.rng.random() < 0.45 else convolution(w)
    x = w.read(x)
    first: Value | None = None
    num_steps = w.rng.choice(MAX_STEPS)
    for index in range(num_steps):
        if index == 1 and w.rng.random() < 0.4 and num_steps > 2 and x.rank > 1:
            name = w.rng.choice(("residual", "identity", "skip", "saved", "shortcut"))
            x, first = w.kept(x, name)
        before = x
        w.note(x)
        x = follow(w, x, first)
        if x.rank < 2 and index > 0:
            break
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
        """Seed and number."""
        return {"source": "compositions", "num": self.num, "seed": self.seed}

    def units(self) -> Sequence[str]:
        """First numbers of the ranges."""
        return [str(start) for start in range(0, self.num, PART)]

    def read(self, unit: str) -> Iterator[Found]:
        """The compositions of a range."""
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
