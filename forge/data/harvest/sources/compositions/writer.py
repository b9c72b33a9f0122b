"""Writes a composed module as one of many people would: draws a style, and makes the text.

An operation of the vocabulary is a list of forms that mean the same, of which the writer takes one:

    "nn.LeakyReLU(%slope) <- $x"        a layer in the constructor, and its call; after `->` stands
                                        what is written behind that
    "F.leaky_relu($x, %slope)"          an expression; F is written as the style imports it
    "$x * &scale[$D]"                   `&name[sizes]` is a parameter of the module
    "_s = $q @ $k.mT\nF.softmax(_s, dim=-1)"   statements, `_name` is a local; the last is the value

`$name` is a tensor or a size, `%name` a constant: a number, or an argument of the constructor.

A size has a name, as a module constant, or none (a side after a convolution). Structure is decided
by `least` and `multiple` alone, which hold at every scale, so that one composition has the same
code at small sizes and at those for a card.
"""

from __future__ import annotations

import ast
import math
import re
import textwrap
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any

VOCABULARY = Path(__file__).with_name("vocabulary.toml")
Number = float | int | bool | str | tuple[int, ...] | None
Constants = dict[str, tuple[Number, ...]]
"""Choices of each constant by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation in the forms that people write it."""

    forms: tuple[str, ...]
    phrase: str = ""
    """How a docstring or a comment calls it."""
    effect: str = ""
    """Its effect on the moments of a value."""
    inputs: str = ""
    """Inputs of its own."""
    work: str = ""
    """Letters whose product, doubled, is the number of floating-point operations."""
    room: str = ""
    """Letters of its largest tensor, where that is no input."""
    constants: Constants = field(default_factory=dict[str, tuple[Number, ...]])

    def formed(self, old: str, new: str, **constants: Number) -> Operation:
        """The operation with another text in its forms, and with these constants."""
        forms = tuple(form.replace(old, new) for form in self.forms)
        return replace(self, forms=forms, constants={n: (each,) for n, each in constants.items()})


@cache
def section(name: str) -> dict[str, Operation]:
    """The operations of a section, in their order."""
    found: dict[str, Operation] = {}
    for each, fields in vocabulary()[name].items():
        words = {key: value for key, value in fields.items() if isinstance(value, str)}
        lists = {key: tuple(value) for key, value in fields.items() if key not in words}
        found[each] = Operation(forms=lists.pop("forms"), constants=lists, **words)
    return found


@cache
def vocabulary() -> dict[str, dict[str, Any]]:
    """`vocabulary.toml`: its operations by section and name, and its kinds of sizes by letter."""
    return tomllib.loads(VOCABULARY.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Dim:
    """One size of a tensor."""

    text: str
    """Name of the module's constant; empty if it has none."""
    size: int
    least: int
    """Lower bound at any scale."""
    multiple: int = 1
    """A divisor at any scale."""

    def strided(self, *, kernel: int, stride: int, padding: int, dilation: int = 1) -> Dim:
        """The size after a window has moved over it."""
        cut = dilation * (kernel - 1) + 1 - 2 * padding
        return Dim("", (self.size - cut) // stride + 1, (self.least - cut) // stride + 1)

    def times(self, factor: int, plus: int = 0) -> Dim:
        """A multiple of the size, without a name."""
        return Dim("", self.size * factor + plus, self.least * factor + plus, 1)


ONE = Dim("1", 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor of floats on its way through `forward`. Its moments are estimates: they choose the
    bounds of a clamp and keep operations apart that would give a constant."""

    text: str
    dims: tuple[Dim, ...]
    is_channels_first: bool = False
    """True for [B, C, sides...]; else features are the last dimension."""
    is_atom: bool = True
    """True if the text needs no parentheses as an operand."""
    mean: float = 0.0
    std: float = 1.0
    is_positive: bool = False
    """True if no element is below zero."""
    flat: frozenset[int] = frozenset()
    """Dimensions along which the sum is about constant, as after a softmax or a norm."""

    @property
    def rank(self) -> int:
        """Number of its dimensions."""
        return len(self.dims)

    @property
    def channel(self) -> int:
        """Index of the dimension of features or channels."""
        return 1 if self.is_channels_first and self.rank > 1 else self.rank - 1

    @property
    def sides(self) -> tuple[int, ...]:
        """Indices of the sides of an image or signal."""
        return tuple(range(2, self.rank)) if self.is_channels_first else ()

    @property
    def is_signal(self) -> bool:
        """True if windows may move over its sides."""
        return bool(self.sides) and all(self.dims[i].least >= 4 for i in self.sides)


class SizeDraw:
    """Draws sizes; structure is drawn elsewhere, so that it is the same at all.

    Small ones, which a CPU judges in less than a second; others of these, each another one; or with
    a factor for the batch large ones, of 100 us and more on a card.
    """

    def __init__(self, key: str, *, is_other: bool = False, factor: float = 0.0) -> None:
        self._is_large = factor > 0
        self._rng, self._moves = Random(f"{key}/{self._is_large}"), Random(f"{key}/moves")
        self._is_other, self._factor = is_other, factor

    def draw(self, letter: str, *, is_volume: bool) -> Dim:
        """A size without a name. Those of volumes are few and small: what a convolution of one
        costs a judge grows with all of them."""
        kind = vocabulary()["sizes"][letter]
        least = kind["small"][0]
        first, last, step = kind.get("volume", kind["small"]) if is_volume else kind["small"]
        choices = kind["large"] if self._is_large else range(first, last + 1, step)
        place = self._rng.randrange(len(choices))
        if self._is_other:
            place = (place + self._moves.randrange(1, len(choices))) % len(choices)
        size = choices[place]
        if self._is_large and letter in ("B", "M"):
            size = max(2, round(size * self._factor))
        return Dim("", size, least, kind.get("multiple", 1))


Given = Value | Dim | str
"""A tensor, a size or a text in place of `$name`."""

_PLACE = re.compile(r"\$(\w+)|%(\w+)|&(\w+)\[([^\]]*)\]|(?<![\w.])_([a-z]\w*)")
INPUT_NAMES = ("x", "x", "x", "x", "x", "x", "x", "x", "input", "inputs", "data", "tensor")
STEP_NAMES = ("out", "y", "h", "z", "res", "tmp", "feats", "act")


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingStyle:
    """How one author writes."""

    functional: str
    layer_share: float
    """Share of the operations with a layer that are written as layers."""
    is_nested: bool
    renames: bool
    """True if each step has a name of its own; else the input's name is used again."""
    is_typed: bool
    doc: str
    """A docstring of the class in one `line` or in `sections`, of the methods also (`full`), or
    `comments` beside the steps."""
    constants: str
    """`literal`, `argument` or `default`, by which a window's size alone is passed."""
    supers: str
    random: str
    is_explicit: bool
    """True if a convolution's stride, padding and the like are written where they are usual."""
    is_spaced: bool
    """True with two empty lines between the parts, as formatters write."""
    has_shape: bool
    """True if `get_inputs` has the sizes of a sample under one name."""
    gives_numbers: bool
    """True if `get_init_inputs` has numbers in place of the names of constants."""
    joins_sides: bool
    """True for `height, width = 16, 12`."""
    has_products: bool
    """True for even sizes as `8 * 2`."""
    has_heading: bool
    """True with `# Test code` above the constants."""

    @classmethod
    def draw(cls, rng: Random) -> WritingStyle:
        return cls(**{
            name: rng.choice(each) if isinstance(each, list) else rng.random() < each
            for name, each in vocabulary()["style"].items()
        })  # fmt: skip


@dataclass(slots=True)
class _Argument:
    """An argument of the constructor."""

    name: str
    value: str
    """The value in `get_init_inputs`; empty if the default is taken."""
    kind: str
    default: str = ""


class ModuleWriter:
    """One module while it is written."""

    def __init__(self, rng: Random, sizes: SizeDraw) -> None:
        self.rng = rng
        self._draw = sizes
        self.style = WritingStyle.draw(rng)
        self.constants: dict[str, str] = {}
        """Constants of the module by name, in order."""
        self.sizes: dict[str, int | str] = {}
        """Constants that are sizes of inputs or parameters; a shape as its text."""
        self.fixed: set[str] = set()
        """Constants that the constructor gets, so that parameters may have them."""
        self.phrases: list[str] = []
        self.ops: list[str] = []
        """Names of the operations, in order: what the composition is."""
        self.num_bytes = 0
        self.flops = 0.0
        self.largest = 0
        """Elements of the largest tensor."""
        self.is_volume = False
        """True if the input has three sides."""
        self._arguments: dict[str, _Argument] = {}
        self._setup: list[str] = []
        self._body: list[str] = []
        self._inputs: list[tuple[str, str]] = []
        """Names, and what `get_inputs` makes."""
        self._sides: list[str] = []
        """Constants that are sides of an image."""
        self._shapes: list[str] = []
        self._attributes: set[str] = set()
        self._locals: set[str] = set()
        self._stored: set[str] = set()
        self._comment = ""
        self._main = ""
        self._meanings: dict[str, str] = {}
        self._chosen: dict[str, Number] = {}
        """Numbers for the constants of the operation that is being written."""
        self._once: dict[str, str] = {}
        """Texts of its constants, so that one that occurs twice is one."""
        self.weight_std = 1.0
        """Standard deviation of the last matrix among the parameters."""

    # sizes and inputs

    def size(self, letter: str) -> Dim:
        """A new size, as a constant of the module."""
        drawn = self._draw.draw(letter, is_volume=self.is_volume)
        taken = self.constants.keys() | self._locals
        kind = vocabulary()["sizes"][letter]
        name = self._fresh(self.rng.choice(kind["names"]), taken)
        text = str(drawn.size)
        if self.style.has_products and drawn.size % 2 == 0:
            text = f"{drawn.size // 2} * 2"
        self.constants[name], self.sizes[name] = text, drawn.size
        if letter in "ZHW":
            self._sides.append(name)
        self._meanings[name] = kind["meaning"]
        return replace(drawn, text=name)

    def halved(self, dim: Dim) -> Dim:
        """A constant of the module as half of what was drawn."""
        self.sizes[dim.text] = size = (dim.size + 1) // 2
        self.constants[dim.text] = str(size)
        return replace(dim, size=size, least=(dim.least + 1) // 2)

    def input(
        self, dims: Sequence[Dim], *, kind: str = "", name: str = "", below: Dim | None = None
    ) -> Value:
        """A tensor that `forward` is called with.

        Args:
            kind: empty for floats of the style's distribution, `<` for indices, `?` for a mask, `+`
                for positive floats, `1` for floats between 0 and 1, `=` for probabilities along the
                last dimension, `-` for -1 or 1, `#` for a number, `u` and `l` for triangles.
        """
        taken = self.constants.keys() | self._locals
        name = self._fresh(name or self.rng.choice(INPUT_NAMES), taken)
        self._locals.add(name)
        self._main = self._main or name
        shape = ", ".join(dim.text for dim in dims)
        both = _shown([dim.text for dim in dims])
        style = self.style.random
        drawn = {
            "": f"{style}({shape})",
            "+": f"torch.rand({shape}) + 0.1",
            "1": f"torch.rand({shape})",
            "=": f"{style}({shape}).softmax(dim=-1)",
            "?": f"torch.rand({shape}) > 0.3",
            "-": f"torch.randint(0, 2, {both}).float() * 2 - 1",
            "<": f"torch.randint(0, {below.text if below else 2}, {both})",
            "#": str(self.rng.choice((0.5, 1.5, 2.0, 3.14))),
            "u": f"torch.triu({style}({shape}))",
            "l": f"torch.tril({style}({shape}))",
        }[kind]
        self._inputs.append((name, drawn))
        self._shapes.append(both)
        self.num_bytes += 4 * count(dims)
        self.largest = max(self.largest, count(dims))
        is_unit = style == "torch.rand" or kind in "+1"
        return Value(
            text=name, dims=tuple(dims), is_positive=kind in "+1=" or style == "torch.rand",
            mean=0.5 if is_unit else 0.0, std=0.29 if is_unit else 1.0,
        )  # fmt: skip

    # operations

    def write(self, one: Operation, hint: str = "", **given: Given) -> str:
        """The text of an operation in one of its forms; what it needs before is written."""
        if one.phrase:
            self.phrases.append(one.phrase)
        layers = [form for form in one.forms if " <- " in form]
        calls = [form for form in one.forms if " <- " not in form]
        takes_layer = layers and (not calls or self.rng.random() < self.style.layer_share)
        form = self.rng.choice(layers if takes_layer else calls)
        given = self._readable(form, given)
        self._choose(one)
        if takes_layer:
            built, called = form.split(" <- ")
            called, _, after = called.partition(" -> ")
            built = self._filled(built, given, in_setup=True)
            layer = self.attribute(hint or _snake(built), built)
            return f"self.{layer}({self._filled(called, given)}){after}"
        *lines, last = form.split("\n")
        made: dict[str, str] = {}
        for line in lines:
            self._body.append(self._filled(line, given, made=made))
        return self._filled(last, given, made=made)

    def apply(self, one: Operation, value: Value, hint: str = "", **given: Given) -> Value:
        """The operation on one value `$x`, bound to a name or nested in what follows."""
        if self.style.doc == "comments" and one.phrase:
            self._comment = one.phrase
        return self.let(value, self.write(one, hint, x=value, **given), hint)

    def step(
        self, name: str, one: Operation, x: Value, hint: str = "",
        given: Mapping[str, Given] | None = None, **facts: Any,
    ) -> Value:  # fmt: skip
        """An operation of the composition on one value, with the facts that it changes."""
        self.ops.append(name)
        return replace(self.apply(one, x, hint, **(given or {})), **facts)

    def let(self, like: Value, text: str, hint: str = "") -> Value:
        """A value with the facts of another and a new text."""
        is_atom = _is_atom(text)
        if self.style.is_nested and len(text) < 48 and self.rng.random() < 0.6:
            return replace(like, text=text, is_atom=is_atom)
        return replace(like, text=self._bound(text, hint), is_atom=True)

    def bound(self, value: Value, hint: str = "") -> Value:
        """The value under a name."""
        if value.text.isidentifier():
            return value
        return replace(value, text=self._bound(value.text, hint), is_atom=True)

    def kept(self, value: Value, hint: str = "residual") -> tuple[Value, Value]:
        """The value twice: for further steps, and under a name that they do not change."""
        value = self.bound(value)
        if self.style.renames:
            return value, value
        name = self._local(hint)
        ending = self.rng.choice(("", "", "", ".clone()", ".clone().detach()"))
        self._body.append(f"{name} = {value.text}{ending}")
        return value, replace(value, text=name)

    def note(self, *values: Value) -> None:
        """Remembers the size of the largest tensor."""
        self.largest = max(self.largest, *(count(value.dims) for value in values))

    def attribute(self, base: str, built: str) -> str:
        """The name of a new attribute of the module."""
        name = self._fresh(base, self._attributes | self._arguments.keys() | self.constants.keys())
        self._attributes.add(name)
        self._setup += f"self.{name} = {built}".split("\n")
        return name

    def parameter(self, name: str, dims: Sequence[Dim]) -> str:
        """A new parameter's text in `forward`; without `dims` it is a number."""
        if not dims:
            value = self.constant(name, self.rng.choice((1.0, 0.5, 2.0)), in_setup=True)
            return "self." + self.attribute(name, f"nn.Parameter(torch.tensor({value}))")
        sizes = ", ".join(self.in_setup(dim) for dim in dims)
        self.num_bytes += 4 * count(dims)
        if sum(dim.text != "1" for dim in dims) > 1:
            return self._matrix(name, sizes)
        made = self.rng.choice(
            (f"torch.randn({sizes})", f"torch.randn({sizes})", f"torch.rand({sizes})",
             f"torch.randn({sizes}) * 0.1", f"torch.ones({sizes})")
        )  # fmt: skip
        if self.rng.random() < 0.5:
            shape = self.shape(f"{name}_shape", dims)
            made = self.rng.choice((f"torch.randn({shape})",) * 3 + (f"torch.ones({shape})",))
        return "self." + self.attribute(name, f"nn.Parameter({made})")

    def _matrix(self, name: str, sizes: str) -> str:
        """A new matrix or kernel's text in `forward`."""
        std, made = self.rng.choice(
            ((1.0, f"torch.randn({sizes})"), (0.1, f"torch.randn({sizes}) * 0.1"),
             (0.05, f"0.05 * torch.randn({sizes})"),
             (0.02, f"torch.empty({sizes}).normal_(0, 0.02)"),
             (0.0, f"nn.init.xavier_uniform_(torch.empty({sizes}))"),
             (0.0, f"nn.init.kaiming_uniform_(torch.empty({sizes}), a=math.sqrt(5))"))
        )  # fmt: skip
        self.weight_std = std
        if not std and self.rng.random() < 0.5:
            text = self.attribute(name, f"nn.Parameter(torch.empty({sizes}))")
            self._setup.append(f"nn.init.{made.split('.')[2].split('(')[0]}(self.{text})")
            return f"self.{text}"
        return "self." + self.attribute(name, f"nn.Parameter({made})")

    def shape(self, name: str, dims: Sequence[Dim]) -> str:
        """Several sizes as one argument of the constructor."""
        self.fixed.update(dim.text for dim in dims)
        return self._argument(name, _shown([dim.text for dim in dims]), "tuple")

    def in_setup(self, dim: Dim) -> str:
        """A size as the constructor writes it."""
        if dim.text.isdecimal():
            return dim.text
        self.fixed.add(dim.text)
        return self._argument(dim.text, dim.text, "int")

    def in_forward(self, dim: Dim) -> str:
        """A size as `forward` writes it."""
        name = self.in_setup(dim)
        if name not in self._stored and not name.isdecimal():
            self._stored.add(name)
            self._setup.append(f"self.{name} = {name}")
        return name if name.isdecimal() else f"self.{name}"

    def constant(self, name: str, value: Number, *, in_setup: bool = False) -> str:
        """A number as its author writes it."""
        literal = repr(value)
        if self.style.constants == "literal" or isinstance(value, str) or self.rng.random() < 0.15:
            return literal
        taken = self._arguments.keys() | self.constants.keys() | self._attributes
        base, name = name, self._fresh(name, taken)
        kind = "int" if value is None else type(value).__name__
        is_default = self.style.constants == "default" or base in ("bias", "dilation", "groups")
        if is_default and base != "kernel_size":
            self._arguments[name] = _Argument(name, "", kind, literal)
        else:
            self._arguments[name] = _Argument(name, name, kind)
            self.constants[name] = literal
        if in_setup:
            return name
        self._setup.append(f"self.{name} = {name}")
        return f"self.{name}"

    # text

    def finish(self, value: Value) -> str:
        """The source of the problem."""
        self.note(value)
        self.num_bytes += 4 * count(value.dims)
        gap = "\n\n\n" if self.style.is_spaced else "\n\n"
        parts = ["\n".join(self._class([f"return {value.text}"]))]
        last = [self._get_inputs(), self._get_init_inputs()]
        ending = ""
        shape = re.search(r"rand\w*\(\w+, (\w+(?:, \w+)*)\)", last[0])
        if shape and self.style.has_shape:
            last[0] = last[0].replace(f", {shape[1]})", ", *input_shape)")
            names = shape[1].split(", ")
            if self.fixed.isdisjoint(names) and not set(names) & set(re.findall(r"\w+", last[0])):
                names = [str(self.sizes.pop(name, name)) for name in names]
                self.sizes["input_shape"] = _shown(names)
            ending = f"input_shape = {_shown(names)}"
        used = set(re.findall(r"\w+", " ".join([*last, ending])))
        names = [name for name in self.constants if name in used]
        sides = [name for name in names if name in self._sides] * self.style.joins_sides
        held = [f"{name} = {self.constants[name]}" for name in names if name not in sides[1:]]
        if sides[1:]:
            at = names.index(sides[0])
            held[at] = f"{', '.join(sides)} = {', '.join(self.constants[one] for one in sides)}"
        held += [ending] * bool(ending)
        parts += ["\n".join([*["# Test code"] * self.style.has_heading, *held]), *last]
        text = gap.join(part for part in parts if part) + "\n"
        text = re.sub(r"(?<![\w.])F\.", f"{self.style.functional}.", text)
        imports = ["import math"] if re.search(r"(?<![\w.])math\.", text) else []
        imports += ["import torch", "import torch.nn as nn"]
        if self.style.functional == "F" and re.search(r"(?<![\w.])F\.", text):
            imports.append("import torch.nn.functional as F")
        return "\n".join(imports) + gap + text

    def _class(self, ending: list[str]) -> list[str]:
        lines = ["class Model(nn.Module):"]
        if self.style.doc not in ("", "comments"):
            lines += _indented(1, self._docstring())
        required = [each for each in self._arguments.values() if not each.default]
        optional = [each for each in self._arguments.values() if each.default]
        names = ["self", *(self._signed(each) for each in [*required, *optional])]
        if self._setup or self.rng.random() < 0.7:
            result = " -> None" if self.style.is_typed and self.rng.random() < 0.3 else ""
            lines.append(f"    def __init__({', '.join(names)}){result}:")
            if self.style.doc == "full" and self._arguments:
                layer = re.sub("^an? ", "", " and ".join(self.phrases))
                opening = f"Initializes the {layer} layer." * (len(self.phrases) == 1)
                opening = self.rng.choice(("Initializes the module.", opening, opening, ""))
                lines += _indented(2, _sections(opening, Args=self._described()))
            lines += [*_indented(2, (self.style.supers, *self._setup)), ""]
        kinds = ["float" if drawn[0].isdigit() else "torch.Tensor" for _, drawn in self._inputs]
        typed = [f": {kind}" if self.style.is_typed else "" for kind in kinds]
        names = [name for name, _ in self._inputs]
        taken = ", ".join(["self", *map("".join, zip(names, typed, strict=True))])
        result = " -> torch.Tensor" if self.style.is_typed else ""
        lines.append(f"    def forward({taken}){result}:")
        if self.style.doc == "full":
            lines += _indented(2, self._forward_docstring())
        return lines + _indented(2, (*self._body, *ending))

    def _signed(self, argument: _Argument) -> str:
        typed = f": {argument.kind}" if self.style.is_typed else ""
        equals = " = " if typed else "="
        return f"{argument.name}{typed}" + (equals + argument.default if argument.default else "")

    def _docstring(self) -> list[str]:
        said = list(dict.fromkeys(self.phrases)) or ["a few operations"]
        opening = self.rng.choice(
            ("Model that performs {}.", "Computes {}.", "{}.", "Simple model with {}.",
             "Applies {}.", "A module that does {}.")
        )  # fmt: skip
        text = opening.format(", ".join(said[:-1]) + (" and " if said[1:] else "") + said[-1])
        text = text[0].upper() + text[1:]
        if self.style.doc == "line" and len(text) < 84:
            return [f'"""{text}"""']
        is_listed = self.style.doc == "sections" and self._arguments
        return _sections(text, Args=self._described() if is_listed else ())

    def _forward_docstring(self) -> list[str]:
        said = f"{self.phrases[0]} to the input tensor" if len(self.phrases) == 1 else "the module"
        opening = self.rng.choice(("Runs the module.", f"Applies {said}.", f"Applies {said}.", ""))
        kind = self.rng.choice(("Input tensor", "Tensor"))
        inputs = [
            f"{name} (torch.Tensor): {kind} of shape {shape}."
            if shape != "()"
            else f"{name} (float): Scalar value."
            for (name, _), shape in zip(
                self._inputs, map(self._described_shape, self._shapes), strict=True
            )
        ]
        result = self.rng.choice(("Output tensor", "The result", "Result of the operations"))
        return _sections(opening, Args=inputs, Returns=[f"torch.Tensor: {result}."])

    def _described_shape(self, shape: str) -> str:
        """A shape, of which one author in six names the first two sizes alone."""
        names = shape.split(", ")
        return f"{names[0]}, {names[1]}, *)" if names[3:] and self.rng.random() < 0.16 else shape

    def _described(self) -> list[str]:
        """The arguments of the constructor."""
        found: list[str] = []
        for each in self._arguments.values():
            said = self._meanings.get(each.value, each.name.replace("_", " ").capitalize())
            usual = f" Defaults to {each.default}." if each.default else ""
            kind = each.kind + (", optional" if each.default else "")
            found.append(f"{each.name} ({kind}): {said}.{usual}")
        return found

    def _get_inputs(self) -> str:
        if self.rng.random() < 0.5 or sum(len(drawn) for _, drawn in self._inputs) > 70:
            lines = [f"    {name} = {drawn}" for name, drawn in self._inputs]
            made = ", ".join(name for name, _ in self._inputs)
            return "\n".join(["def get_inputs():", *lines, f"    return [{made}]"])
        return f"def get_inputs():\n    return [{', '.join(drawn for _, drawn in self._inputs)}]"

    def _get_init_inputs(self) -> str:
        numbers = {n: v for n, v in self.constants.items() if n not in self.sizes}
        numbers = numbers if self.style.gives_numbers else {}
        given = [each.value for each in self._arguments.values() if each.value]
        values = ", ".join(numbers.get(one, one) for one in given)
        said = ("", "", "  # no arguments", "  # No special initialization inputs needed")
        ending = self.rng.choice(said) if not values else ""
        return f"def get_init_inputs():\n    return [{values}]{ending}"

    # names

    def _argument(self, name: str, value: str, kind: str) -> str:
        found = next((each for each in self._arguments.values() if each.value == value), None)
        if found is None:
            if self.rng.random() < 0.3:
                name = vocabulary()["arguments"].get(name, name)
            name = self._fresh(name, self._arguments.keys())
            found = self._arguments[name] = _Argument(name, value, kind)
        return found.name

    def _bound(self, text: str, hint: str = "") -> str:
        if self.style.renames:
            base = hint if hint and self.rng.random() < 0.6 else self.rng.choice(STEP_NAMES)
            name = self._local(base)
        else:
            name = self._main
        line = f"{name} = {text}"
        if self._comment and self.rng.random() < 0.5:
            line += f"  # {self._comment}"
        elif self._comment:
            self._body.append(f"# {self._comment}")
        self._comment = ""
        self._body.append(line)
        return name

    def _local(self, base: str) -> str:
        name = self._fresh(base, self._locals)
        self._locals.add(name)
        return name

    def _fresh(self, base: str, taken: Collection[str]) -> str:
        options = (base, *(f"{base}{i}" for i in range(2, 99)))
        return next(one for one in options if one not in taken)

    def _choose(self, one: Operation) -> None:
        """Draws the constants of an operation that is about to be written."""
        self._once = {}
        self._chosen = {name: self.rng.choice(each) for name, each in one.constants.items()}

    def _readable(self, form: str, given: Mapping[str, Given]) -> dict[str, Given]:
        """The tensors and sizes of a form; tensors that it reads twice get a name."""
        found: dict[str, Given] = {}
        for name, each in given.items():
            if isinstance(each, Value):
                times = len(re.findall(rf"\${name}\b", form))
                each = self.bound(each) if times > 1 or "\n" in form else each
            found[name] = each
        return found

    def _filled(
        self, form: str, given: Mapping[str, Given], *, made: dict[str, str] | None = None,
        in_setup: bool = False,
    ) -> str:  # fmt: skip
        def place(match: re.Match[str]) -> str:
            name, constant, parameter, sizes, local = match.groups()
            if constant:
                key = f"{constant}/{in_setup}"
                if key not in self._once:
                    value = self._chosen[constant]
                    self._once[key] = self.constant(constant, value, in_setup=in_setup)
                return self._once[key]
            if parameter:
                return self.parameter(parameter, _dims(sizes, given))
            if local:
                held = {} if made is None else made
                if local not in held:
                    held[local] = self._local(local)
                return held[local]
            each = given[name]
            if isinstance(each, Dim):
                return self.in_setup(each) if in_setup else self.in_forward(each)
            if isinstance(each, str) or each.is_atom:
                return each if isinstance(each, str) else each.text
            is_alone = form[match.start() - 1] in "(, " and form[match.end() : match.end() + 1] in (
                *(")", ","),
            )
            return each.text if is_alone else f"({each.text})"

        return _PLACE.sub(place, form)


def count(dims: Sequence[Dim]) -> int:
    """Number of elements."""
    return math.prod(dim.size for dim in dims)


def _dims(sizes: str, given: Mapping[str, Given]) -> list[Dim]:
    """The sizes of a parameter: `$C, 1, 1`, or `$O, $ones` with a list of numbers for the last."""
    found: list[Dim] = []
    for text in filter(None, sizes.split(", ")):
        each = given[text[1:]] if text.startswith("$") else text
        assert not isinstance(each, Value)
        found += [each] if isinstance(each, Dim) else [number(part) for part in each.split(", ")]
    return found


def _shown(texts: Sequence[str]) -> str:
    """A tuple."""
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def number(text: str) -> Dim:
    """A size that is written as a number."""
    return Dim(text, int(text), int(text))


@lru_cache(maxsize=4096)
def _is_atom(text: str) -> bool:
    node = ast.parse(text, mode="eval").body
    return isinstance(node, ast.Call | ast.Attribute | ast.Name | ast.Subscript | ast.Constant)


def _snake(built: str) -> str:
    """A name for a layer: `conv2d` for `nn.Conv2d(...)`."""
    name = built.split("(")[0].split(".")[-1]
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _indented(depth: int, lines: Iterable[str]) -> list[str]:
    return [f"{' ' * 4 * depth}{line}".rstrip() for line in lines]


def _sections(opening: str, **sections: Sequence[str]) -> list[str]:
    """A docstring of several lines."""
    lines = textwrap.wrap(opening, 85, break_long_words=False, break_on_hyphens=False)
    for name, listed in sections.items():
        if listed:
            lines += [*([""] if lines else []), f"{name}:", *_indented(1, listed)]
    return ['"""', *lines, '"""']
