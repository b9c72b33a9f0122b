"""JSON of other processes: any bytes give a bounded value or BadJson."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.process.strict_json import MAX_DEPTH, BadJson, parse_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
)  # fmt: skip


def depth(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 0


@given(VALUES)
def test_a_value_survives(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


@given(st.binary() | st.text('[]{}",:\\ue019d8NaInfty- ').map(str.encode))
def test_any_bytes_give_a_value_or_one_error(content: bytes) -> None:
    try:
        value = parse_json(content)
    except BadJson:
        return
    assert depth(value) <= MAX_DEPTH
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * 10_000 + b"]" * 10_000, "nested deeper than 64 levels"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested deeper than 64 levels"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b"[-Infinity]", "-Infinity is no JSON"),
        (b"[1e999]", "1e999 is beyond the range of a float"),
        (b'{"a": 1, "b": 2, "a": 3}', "the key 'a' is there twice"),
        (b'"\xff"', "not UTF-8 at byte 1"),
        (rb'"\ud800"', "half of a surrogate pair"),
        (b"1" * 5000, "not JSON: Exceeds the limit"),
        (b"", "not JSON"),
    ],
)
def test_what_is_refused_is_named(content: bytes, words: str) -> None:
    with pytest.raises(BadJson, match=words):
        parse_json(content)


def test_brackets_in_strings_are_no_levels() -> None:
    text = "[{" * 1000 + '\\"' + "[" * 1000
    assert parse_json(json.dumps([text] * 3).encode()) == [text] * 3
    assert parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)


def test_half_a_surrogate_pair_is_kept_where_asked() -> None:
    assert parse_json(rb'"\ud800"', is_text=False) == "\ud800"
    assert parse_json(rb'"\ud83d\ude00"') == "\N{GRINNING FACE}"


def test_a_large_integer_stays_exact() -> None:
    assert parse_json(str(1 << 70).encode()) == 1 << 70
    assert math.isfinite(parse_json(b"1e308"))
