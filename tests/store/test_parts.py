"""A text that is part of another is stored once and reads like any other."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.store.codec import LEAST_PART_BYTES, PART_MAGIC, Encoder, decode_text, find_part
from forge.store.reader import open_run
from tests.store.storefactory import attempt, turn, write_run

CODE = "@triton.jit\ndef kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):\n    ...  # größer ✓\n"
COMPLETION = f"<think>naïve first</think>\n```python\n{CODE}```"


def stored(root: Path, column: str) -> bytes:
    with closing(sqlite3.connect(root / "run.db")) as connection:
        query = f"SELECT body FROM texts JOIN turns ON text_id = {column} LIMIT 1"
        return connection.execute(query).fetchone()[0]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    played = turn(0, code=CODE, completion=COMPLETION)
    return anyio.run(write_zstd, tmp_path / "a" / "toy-1", played)


async def write_zstd(root: Path, *records: object) -> Path:
    return await write_run(root, [attempt(), *records], texts="zstd")


def test_a_candidate_is_stored_as_part_of_its_completion(root: Path) -> None:
    assert stored(root, "code_id")[:4] == PART_MAGIC
    assert len(stored(root, "code_id")) < 30
    with open_run(root) as reader:
        assert reader.value("SELECT code FROM v_turns") == CODE
        assert reader.value("SELECT text(code_id) FROM turns") == CODE
        assert reader.value("SELECT body FROM texts JOIN turns ON text_id = code_id") == CODE
        assert reader.value("SELECT count(*) FROM v_turns WHERE code LIKE '%größer%'") == 1


def test_plain_texts_are_stored_whole(tmp_path: Path) -> None:
    anyio.run(write_run, tmp_path / "toy-1", [turn(0, code=CODE, completion=COMPLETION)])
    assert stored(tmp_path / "toy-1", "code_id") == CODE


def test_a_completion_stored_as_a_part_can_contain_other_parts(tmp_path: Path) -> None:
    shorter = CODE[2:]
    turns = [
        turn(0, code=CODE, completion=COMPLETION),
        turn(1, code=shorter, completion=CODE),  # its completion is stored as a part itself
    ]
    root = anyio.run(write_zstd, tmp_path / "toy-1", *turns)
    with open_run(root) as reader:
        assert reader.rows("SELECT completion, code FROM v_turns WHERE group_id = 1") == [
            {"completion": CODE, "code": shorter}
        ]


def test_a_part_of_another_run_is_not_decoded_with_this_runs_texts(
    root: Path, tmp_path: Path
) -> None:
    turns = [turn(number, code="y" * 80, completion=f"{number}" * 900) for number in range(4)]
    other = anyio.run(write_zstd, tmp_path / "b" / "toy-2", *turns)
    with open_run(other) as reader:
        reader.query(f"ATTACH 'file:{root / 'run.db'}?mode=ro' AS a")
        query = "SELECT text(body) FROM a.texts JOIN a.turns ON text_id = code_id"
        assert reader.value(query) is None


@given(st.text(), st.text(min_size=LEAST_PART_BYTES), st.text())
def test_any_part_is_read_back(before: str, part: str, after: str) -> None:
    encoder = Encoder(texts="zstd")
    whole = before + part + after
    found = find_part(part.encode("utf-8", errors="replace"), whole)
    assert found is not None
    body, lookup = found.body(7), {7: encoder.text(whole)}.get
    assert decode_text(body, lookup) == part.encode("utf-8", errors="replace").decode()
    assert decode_text(body) is None
    assert decode_text(body, {7: encoder.text("something else")}.get) is None
    assert find_part((part + "?").encode("utf-8", errors="replace"), part) is None
