# pyright: strict
"""JSON that came from another process or machine.

Every server and client of forge parses with `parse_json`. Promise: any bytes give a value whose
numbers are finite, whose keys are unique and whose nesting is at most `MAX_DEPTH`, or BadJson; so
no later `repr`, copy or comparison of it can fail.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_DEPTH = 64
"""Levels of arrays and objects. The deepest of forge's own messages has 5."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class BadJson(ValueError):
    """Bytes that are no JSON that forge reads. The message is one line, without them."""


def parse_json(content: bytes, *, is_text: bool = True) -> Any:
    """The value. Raises BadJson.

    Args:
        is_text: Refuse halves of surrogate pairs, which no file, database or tokenizer takes.
    """
    _check_depth(content)
    try:
        value = _DECODER.decode(content.decode())
        if is_text and _SURROGATE.search(content):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise BadJson(f"not UTF-8 at byte {error.start}") from error
    except UnicodeEncodeError as error:
        raise BadJson("found half of a surrogate pair; text is needed") from error
    except BadJson:
        raise
    except (ValueError, RecursionError) as error:
        raise BadJson(f"not JSON: {error}") from error
    return value


def _check_depth(content: bytes) -> None:
    """Python's own bound depends on its version and on the stack."""
    if content.count(b"[") + content.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", content)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > MAX_DEPTH:
            raise BadJson(f"nested deeper than {MAX_DEPTH} levels")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise BadJson(f"the key {twice[:40]!r} is there twice")
    return found


def _no_constant(name: str) -> float:
    raise BadJson(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise BadJson(f"{text[:40]} is beyond the range of a float")
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
)
