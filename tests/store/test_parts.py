"""A text that is part of another is stored once and reads like any other."""

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.store.codec import LEAST_PART_BYTES, PART_MAGIC, Encoder, decode_text, utf8
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
    encoder, whole, raw = Encoder(texts="zstd"), utf8(before + part + after), utf8(part)
    body = encoder.text(raw, whole=whole, whole_id=7)
    assert decode_text(body, {7: encoder.text(whole)}.get) == raw.decode()
    assert decode_text(body, {7: encoder.text(b"something else")}.get) is None
