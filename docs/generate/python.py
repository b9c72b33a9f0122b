"""The page of the Python API: signatures and docstrings of the public names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from types import FunctionType
from typing import Any

import forge
from docs.generate.markdown import code, page, table, text
from docs.generate.members import docs_of
from forge import client
from forge.adapters import rows, scoring, slime, trl, verl
from forge.views.api import Rows, Run

INTRO = """\
`import forge` takes milliseconds: each name is imported when it is first used, and torch is never
imported into the calling process. Judges are processes of their own, so everything works in a
notebook, in threads and in event loops.
"""
RUNS = "Returned by `forge.open`. [Views](store.md#views) have the columns of the rows."
ADAPTERS = """\
They ask a served judge; [the judge in other trainers](../how-to/other-trainers.md) says which
trainer takes which. `forge.adapters.verifiers` is a plugin that verifiers loads by itself.
"""
MAX_WIDTH = 90
NEW_LINE = "\n    "
SECTION = re.compile(r"^(Args|Raises|Returns|Yields|Example|Examples):\n", re.MULTILINE)
ENTRY = re.compile(r"^(\*{0,2}\w[\w, ]*): (.*)$")


def python_page() -> str:
    """All public names of `forge`, the client, and the adapters."""
    names = [part for name in PUBLIC for part in _section(f"forge.{name}", public(name))]
    asked = [part for each in CLIENT for part in _section(f"forge.client.{each.__name__}", each)]
    adapted = [part for each in ADAPTED for part in _section(_qualified(each), each)]
    seen = [part for each in RUN for part in _section(_qualified(each), each)]
    return page(
        "Python", INTRO, "## forge", *names, "## Runs", RUNS, *seen,
        "## Client of a served judge", *asked, "## Adapters", ADAPTERS, *adapted,
    )  # fmt: skip


def public(name: str) -> Any:
    """A public name of `forge`."""
    return getattr(forge, name)


PUBLIC = sorted(
    (name for name in forge.__all__ if not inspect.ismodule(public(name))),
    key=lambda name: (inspect.isclass(public(name)), name),
)
"""Functions, then the classes that they return: the client's module has a section of its own."""
RUN: tuple[Any, ...] = (Run, Rows)
CLIENT: tuple[Any, ...] = (client.Judge, client.Scored, client.Unavailable)
ADAPTED: tuple[Any, ...] = (
    rows.kernel_rows, scoring.ServedScorer, scoring.Attempts, scoring.ScoredAnswer,
    scoring.NoScore, trl.kernel_reward, trl.kernel_environment, verl.compute_score,
    slime.compute_score, slime.group_rewards,
)  # fmt: skip


def iter_documented() -> Iterator[tuple[str, Any]]:
    """Every class and function of the page, and their public methods, by name."""
    names = [(f"forge.{name}", public(name)) for name in PUBLIC]
    for name, each in [*names, *((_qualified(each), each) for each in (*RUN, *CLIENT, *ADAPTED))]:
        yield name, each
        if inspect.isclass(each):
            for method, found in _methods(each):
                yield f"{name}.{method}", found


def public_fields(kind: type[Any]) -> list[tuple[str, str, str]]:
    """Name, type and docstring of each field of a dataclass that is for users."""
    return [field for field in docs_of(kind) if not field[0].startswith("_")]


def _qualified(each: Any) -> str:
    return f"{each.__module__}.{each.__name__}"


def _section(name: str, each: Any) -> Iterator[str]:
    yield f"### {name}"
    if not inspect.isclass(each):
        yield _signature(name, each)
        yield from _docstring(each)
        return
    yield from _docstring(each)
    made = each.__dict__.get("__init__")
    if is_dataclass(each):
        fields = public_fields(each)
        cells = ((code(field), code(kind), text(doc)) for field, kind, doc in fields)
        yield table(("Field", "Type", "Meaning"), cells)
    elif isinstance(made, FunctionType) and made.__doc__:  # others are made by forge alone
        yield _signature(name, each)
        yield from _docstring(made)
    for method, found in _methods(each):
        if isinstance(found, property):
            yield f"**{name.rpartition('.')[2]}.{method}**"
        else:
            yield _signature(f"{name.rpartition('.')[2]}.{method}", found)
        yield from _docstring(found)


def _methods(each: type) -> Iterator[tuple[str, Any]]:
    for name, found in vars(each).items():
        if isinstance(found, classmethod | staticmethod):
            found = found.__func__
        if not name.startswith("_") and isinstance(found, FunctionType | property):
            yield name, found


def _signature(name: str, each: Callable[..., Any]) -> str:
    """The call as Python code, one argument a line if it is long."""
    found = inspect.signature(each)
    arguments = list(_arguments(found))
    returned = "" if inspect.isclass(each) else _returned(found)
    shown = f"({', '.join(arguments)}){returned}"
    if len(name) + len(shown) > MAX_WIDTH:
        shown = f"({''.join(f'{NEW_LINE}{argument},' for argument in arguments)}\n){returned}"
    prefix = "async " if inspect.iscoroutinefunction(each) else ""
    return f"```python\n{prefix}{name}{shown}\n```"


def _arguments(found: inspect.Signature) -> Iterator[str]:
    """Each argument as it is written, with the star before those that need their name."""
    is_marked = False
    for each in found.parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.KEYWORD_ONLY and not is_marked:
            yield "*"
        is_marked = is_marked or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        annotation = "" if each.annotation is each.empty else f": {_name(each.annotation)}"
        default = "" if each.default is each.empty else f" = {each.default!r}"
        yield f"{star}{each.name}{annotation}{default}"


def _returned(found: inspect.Signature) -> str:
    is_empty = found.return_annotation is inspect.Signature.empty
    return "" if is_empty else f" -> {_name(found.return_annotation)}"


def _name(annotation: Any) -> str:
    """An annotation as it is written; those of `__future__` are texts."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _docstring(each: Any) -> Iterator[str]:
    """A docstring in Google style: its text, and a list for each section."""
    first, *sections = SECTION.split(inspect.getdoc(each) or "")
    yield from (_block(part) for part in first.split("\n\n") if part.strip())
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        yield f"*{title}*"
        yield "\n".join(_entries(inspect.cleandoc(body)))


def _block(part: str) -> str:
    """A paragraph, or an indented block as code."""
    lines = part.strip("\n").splitlines()
    if all(line.startswith("    ") for line in lines):
        body = "\n".join(line[4:] for line in lines)
        return f"```python\n{body}\n```"
    return text(part)


def _entries(body: str) -> Iterator[str]:
    """Items `name: text` as a list; text without names as it is."""
    items: list[list[str]] = []
    for line in body.splitlines():
        if not line.startswith(" ") or not items:
            items.append([line])
        else:
            items[-1].append(line)
    for item in items:
        found = ENTRY.match(item[0])
        rest = " ".join(item[1:])
        if found is None:
            yield text(f"{item[0]} {rest}")
        else:
            yield f"- {code(found[1])}: {text(f'{found[2]} {rest}')}"
