"""The error messages that `docs/how-to/troubleshooting.md` explains are in the sources."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/how-to/troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^`([^`\n]+)`\n:   ", PAGE, flags=re.MULTILINE)
"""Each message; … stands for any text."""
SHORTEST = 4
"""Characters that a fixed part of a message needs to say something."""


@cache
def read_sources() -> list[str]:
    """Text of each source file, its neighbouring string literals joined."""
    paths = [path for path in (ROOT / "forge").rglob("*.py") if "judge/trial" not in str(path)]
    joint = re.compile(r"""["']\s*\n\s*f?["']""")
    return [joint.sub("", path.read_text(encoding="utf-8")) for path in paths]


def fixed_parts(message: str) -> list[str]:
    parts = [part.strip(" (;:,.)") for part in message.split("…")]
    return [part for part in parts if len(part) >= SHORTEST]


def is_in_sources(message: str) -> bool:
    """True if one file has all fixed parts in their order."""
    pattern = re.compile(".*?".join(map(re.escape, fixed_parts(message))), re.DOTALL)
    return any(pattern.search(text) for text in read_sources())


def test_there_are_messages_to_check() -> None:
    assert len(MESSAGES) >= 15


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_is_explained_exists(message: str) -> None:
    assert fixed_parts(message)
    assert is_in_sources(message)


def test_a_message_that_does_not_exist_is_found() -> None:
    assert not is_in_sources("…: the moon is not full; …")
