"""Lines of keys: a document with known lines, and random documents compared with tomli."""

from __future__ import annotations

from typing import Any

import pytest
import tomli
from hypothesis import assume, given
from hypothesis import strategies as st

from forge.config.sources import key_lines, split_key

DOCUMENT = '''\
# [not.a.table]
name = "a # no comment" # x = 1
"quoted key".'and.dotted' = 1
text = """
[no.table]
key = "no \\""" key"
"""
raw = \'\'\'
a = ''1\'\'\'\'\'
list = [
  1, # one
  { x = 1, y.z = [2, 3] },
  [ "]", '}' ],
]
when = 1979-05-27 07:32:00Z

[ table . inner ]
x = {}
[[stage]]
kind = "sft"
[stage.deep]
y = 1
[[stage]]
kind = "eval"
[[stage.more]]
z = 1
'''


def test_lines_are_counted_from_one():
    lines = key_lines(DOCUMENT)
    assert lines["name",] == 2
    assert lines["quoted key", "and.dotted"] == 3
    assert lines["raw",] == 8
    assert lines["list",] == 10
    assert lines["list", 1, "y", "z", 1] == 10, "a value counts as the line of its key"
    assert lines["when",] == 15
    assert lines["table", "inner", "x"] == 18
    assert lines["stage", 0, "deep", "y"] == 22
    assert lines["stage", 1] == 23
    assert lines["stage", 1, "more", 0, "z"] == 26
    assert set(lines) == paths_of(tomli.loads(DOCUMENT))


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = {path} if path else set()
    for key, inner in items:
        nested = isinstance(inner, dict | list)
        found |= paths_of(inner, (*path, key)) if nested else {(*path, key)}
    return found


names = st.sampled_from(["a", "b", "c-1", '"d.e"', "'f # g'", '"\\u0041"', '""'])
keys = st.lists(names, min_size=1, max_size=3).map(" . ".join)
blank = st.sampled_from(["", " ", "\t", "\n", " # ]}\"'\n"])
scalars = st.sampled_from(
    [
        *("1", "-1e3", "true", "inf", "1979-05-27", "07:32:00", "1979-05-27 07:32:00"),
        *('""', '"x\\"] = \\\\"', "''", "'\\'", '"""a\n"" \\""" ] = """""', "'''\n[a]''x'''''"),
    ]
)


def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(keys, inner).map(" = ".join)
    arrays = st.tuples(blank, st.lists(inner, max_size=3), blank, st.booleans())
    tables = st.lists(pairs, max_size=3).map(lambda items: f"{{ {', '.join(items)} }}")
    return tables | arrays.map(
        lambda a: f"[{a[0]}{f',{a[2]}'.join(a[1])}{',' if a[1] and a[3] else ''}{a[2]}]"
    )


values = st.recursive(scalars, extend, max_leaves=6)
lines = st.one_of(
    st.tuples(keys, values).map(" = ".join),
    keys.map("[ {} ] # x".format),
    keys.map("[[{}]]".format),
    st.just("# a = 1"),
    st.just(""),
)


@given(st.lists(lines, max_size=8).map("\n".join))
def test_the_paths_found_are_exactly_those_of_the_document(text):
    try:
        document = tomli.loads(text)
    except tomli.TOMLDecodeError:
        assume(False)
        return
    found = key_lines(text)
    assert set(found) == paths_of(document)
    assert all(1 <= line <= text.count("\n") + 1 for line in found.values())


@pytest.mark.parametrize(
    ("text", "parts"),
    [("a", ("a",)), ("a.b-c.1", ("a", "b-c", "1")), ('a."b.c" . d', ("a", "b.c", "d"))],
)
def test_a_dotted_key_splits_as_toml_reads_it(text, parts):
    assert split_key(text) == parts


@pytest.mark.parametrize(
    "text", ["", " ", '""', 'a.""', "a.", "a b", "a #", "[a]", "a\nb", '"a', "a = 1\nb"]
)
def test_an_empty_part_or_anything_but_a_key_is_refused(text):
    with pytest.raises(ValueError, match="is not a key"):
        split_key(text)
