"""Writes the schemas of the operations that programs may have, as this machine's torch knows them.

usage: python -m bench.write_schemas        (then look at `git diff`)
"""

from __future__ import annotations

import re

import torch

from forge.evalpool.judge.program.ops import CONSTANTS, KINDS, PATH, Schema, forms

LEFT_OUT = {"device", "pin_memory", "generator", "names"}
"""Arguments that no program has: the executor chooses them."""
TRUSTED = {"int? output_size"}
"""Arguments that a kernel believes: `repeat_interleave` writes past a size that is too small."""
TYPES = {"Tensor", "Scalar", "int", "float", "bool", "str", *CONSTANTS}
ARGUMENT = re.compile(r"(?P<type>[\w?]+(\[\d*\])?\??)(?P<alias>\([^)]*\)(\[\])?)? (?P<name>\w+)")
SPLIT = re.compile(r", (?![^\[(]*[\])])")
"""A comma outside of brackets."""


def lines() -> list[str]:
    """A line for each overload of each operation, with its in-place form and those with `out`."""
    found: dict[str, tuple[str, Schema]] = {}
    for name, kind in KINDS.items():
        for form in (name, f"{name}_"):
            for schema in torch._C._jit_get_schemas_for_operator(f"aten::{form}"):
                if text := line(str(schema)):
                    found[f"{kind} {text}"] = kind, next(forms(kind, text))
    known = {schema.name: schema for _, schema in found.values()}
    words: dict[str, list[str]] = {}
    said = set[str]()
    for text, (kind, schema) in sorted(found.items(), key=lambda pair: pair[1][1].name):
        words[text] = []
        for other, word in possible(schema, known):
            *_, made = forms(kind, f"{text.partition(' ')[2]} {word}")
            if made == known[other] and other not in said:
                words[text].append(word)
                said.add(other)
    return [" ".join([text, *words[text]]) for text in words if found[text][1].name not in said]


def possible(schema: Schema, known: dict[str, Schema]) -> list[tuple[str, str]]:
    """Names of schemas that may be forms of one, and the words for them."""
    name, _, overload = schema.name.rpartition(".")
    if not schema.arguments or any(one.is_written for one in schema.arguments[:1]):
        return []
    pairs = [(f"{name}_.{overload}", "_")] if f"{name}_.{overload}" in known else []
    for other, one in known.items():
        outs = [each.name for each in one.arguments if each.is_keyword and each.is_written]
        if outs and other.rpartition(".")[0] == name and other != schema.name:
            word = other.rpartition(".")[2]
            pairs.append((other, word if outs == ["out"] else f"{word}:{','.join(outs)}"))
    return pairs


def line(schema: str) -> str:
    """The line for a schema as torch prints it; empty if programs cannot have it."""
    head, _, returns = schema.removeprefix("aten::").partition(" -> ")
    full, _, inner = head.partition("(")
    packet, _, overload = full.partition(".")
    arguments: list[str] = []
    for text in SPLIT.split(inner.removesuffix(")")):
        if text in ("*", ""):
            arguments += [text] if text else []
            continue
        argument = shortened(text)
        if argument is None:
            return ""
        if argument:
            arguments.append(argument)
    if arguments[-1:] == ["*"]:
        arguments.pop()
    count = returned(returns)
    if "enerator" in overload or count is None:
        return ""
    return f"aten.{packet}.{overload or 'default'}({', '.join(arguments)}) -> {count}"


def shortened(text: str) -> str | None:
    """An argument in the notation of `schemas.txt`: empty if left out, None if unknown."""
    found = ARGUMENT.match(text)
    if found is None:
        return None
    type = found["type"].replace("SymInt", "int")
    if found["name"] in LEFT_OUT or f"{type} {found['name']}" in TRUSTED:
        return ""
    if type.split("[")[0].rstrip("?") not in TYPES:
        return None
    if found["alias"] and "[]" in found["alias"]:
        return None
    written = "!" if found["alias"] and "!" in found["alias"] else ""
    return f"{type}{written} {found['name']}{'=' if '=' in text else ''}"


def returned(text: str) -> str | None:
    """Number of tensors among the results, `*` for a list of them; None if there are none."""
    if "Tensor[]" in text:
        return "*"
    return str(text.count("Tensor")) if "Tensor" in text else None


if __name__ == "__main__":
    PATH.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    print(f"{PATH}: {len(lines())} schemas")
