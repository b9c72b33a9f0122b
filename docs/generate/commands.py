"""The page of all commands with their arguments and options, from the command line's own parser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from typer.main import get_command

from docs.generate.markdown import code, page, table, text
from forge.cli import app

INTRO = """\
`forge COMMAND --help` prints the same in a terminal. `RUN` is a directory, an archive, a name
(`quickstart`: its latest run), a name with its number (`quickstart-1`), or `last`. Commands with
`--json` print one JSON document on stdout; messages and progress go to stderr.
[Exit codes](exit-codes.md) say how a command ended.
"""
VALUES: dict[Any, str] = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
"""Name of a value without one of its own, by its type."""
HEAD = ("Argument or option", "Value", "Default", "Meaning")


def commands_page() -> str:
    """All commands in the order of `forge --help`."""
    root: Any = get_command(app)
    parts = ["## forge", text(root.help), _options(root)]
    for name, command in iter_commands(root, "forge"):
        parts += [f"## {name}", usage(name, command), *_paragraphs(command.help)]
        if command.params:
            parts.append(_options(command))
    return page("Commands", INTRO, *parts)


def iter_commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """All commands that are shown, those of groups included, with their full names."""
    for part, inner in command.commands.items():
        if inner.hidden:
            continue
        if hasattr(inner, "commands"):
            yield from iter_commands(inner, f"{name} {part}")
        else:
            yield f"{name} {part}", inner


def usage(name: str, command: Any) -> str:
    """One line as `--help` shows it."""
    words = [name]
    if any(parameter.opts[0].startswith("-") for parameter in command.params):
        words.append("[OPTIONS]")
    arguments = (p for p in command.params if not p.opts[0].startswith("-"))
    words += [metavar(p) if p.required else f"[{metavar(p)}]" for p in arguments]
    return f"```text\n{' '.join(words)}\n```"


def _paragraphs(help_text: str | None) -> list[str]:
    return [text(part) for part in (help_text or "").split("\n\n")]


def _options(command: Any) -> str:
    shown = (parameter for parameter in command.params if not parameter.hidden)
    return table(HEAD, map(_row, shown))


def _row(parameter: Any) -> tuple[str, ...]:
    is_option = parameter.opts[0].startswith("-")
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [metavar(parameter)]
    value = "" if not is_option or getattr(parameter, "is_flag", False) else metavar(parameter)
    shown = "" if parameter.default in (None, False, ()) else code(str(parameter.default))
    if parameter.required:
        shown = "*required*"
    return (
        ", ".join(map(code, names)),
        code(value) + (", repeatable" if parameter.multiple else ""),
        shown,
        text(meaning(parameter)),
    )


def meaning(parameter: Any) -> str:
    """Help of an argument or option."""
    return parameter.help or ""


def metavar(parameter: Any) -> str:
    """Name of the value; square brackets of an optional argument are left out."""
    given = parameter.metavar or VALUES.get(_base(parameter.type_descriptor.annotation), "TEXT")
    return given[1:-1] if given.startswith("[") else given


def _base(annotation: Any) -> Any:
    """The type of one value of a list."""
    return get_args(annotation)[0] if get_origin(annotation) is list else annotation
