"""The writer: flushed rows are on disk, whatever happens next."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge.errors import ConfigError, MachineError
from forge.records import Event, Metrics, Sample, Status
from forge.store.codec import (
    LEAST_PART_BYTES,
    PART_MAGIC,
    Encoder,
    decode_ids,
    decode_logprobs,
    decode_text,
    utf8,
)
from forge.store.reader import open_run
from forge.store.write.writer import open_writer
from tests.examples import examples
from tests.store.storefactory import (
    Options,
    attempt,
    edit,
    group,
    samples,
    small_run,
    turn,
    use,
    write_run,
)


def counts(root: Path) -> dict[str, int]:
    with open_run(root) as reader:
        names = [row["name"] for row in reader.rows("SELECT name FROM sqlite_master")]
        tables = [
            n
            for n in names
            if reader.value(f"SELECT type FROM sqlite_master WHERE name = '{n}'") == "table"
        ]
        return {name: reader.value(f"SELECT count(*) FROM {name}") for name in tables}


@pytest.mark.parametrize("texts", ["plain", "zstd"])
async def test_every_record_type_has_rows(tmp_path: Path, texts: str) -> None:
    root = await write_run(tmp_path / "toy-1", small_run(), texts=texts)
    found = counts(root)
    empty = [name for name, number in found.items() if not number and "open_" not in name]
    assert set(empty) == {
        *("programs", "turn_programs", "turn_protocols", "turn_shapes", "turn_calls"),
        *("judgings", "verdicts_again"),
    }
    assert found["turns"] == found["verdicts"] == 24
    with open_run(root) as reader:
        assert reader.value("SELECT count(*) FROM tokens.tokens") == 24


async def test_putting_the_same_records_again_changes_nothing_but_events(tmp_path: Path) -> None:
    records = [record for record in small_run() if not isinstance(record, Event)]
    root = await write_run(tmp_path / "toy-1", records)
    once = counts(root)
    await write_run(root, records)
    assert counts(root) == once


async def test_a_shared_prompt_is_stored_once(tmp_path: Path) -> None:
    turns = [turn(0, rollout, prompt="the same prompt") for rollout in range(8)]
    root = await write_run(tmp_path / "toy-1", turns)
    with open_run(root) as reader:
        assert reader.value("SELECT count(*) FROM texts WHERE text(body) = 'the same prompt'") == 1
        assert reader.value("SELECT count(*) FROM v_turns WHERE prompt = 'the same prompt'") == 8


async def test_a_group_put_without_its_turns_stores_them(tmp_path: Path) -> None:
    played = group(3, [[Status.WRONG, Status.CORRECT]])
    root = await write_run(tmp_path / "toy-1", [played])
    with open_run(root) as reader:
        rows = reader.rows("SELECT turn_id, reward, discounted_return, ended FROM v_turns")
    assert [row["turn_id"] for row in rows] == ["g3.r0.t0", "g3.r0.t1"]
    assert [row["discounted_return"] for row in rows] == [0.3, 0.8]
    assert rows[0]["ended"] == "correct"


async def test_tokens_and_logprobs_are_read_back_exactly(tmp_path: Path) -> None:
    played = turn(0)
    root = await write_run(tmp_path / "toy-1", [played])
    with open_run(root) as reader:
        row = reader.one("SELECT * FROM tokens.tokens")
    assert decode_ids(row["prompt_ids"]) == played.prompt_ids
    assert decode_ids(row["completion_ids"]) == played.completion.token_ids
    assert decode_logprobs(row["logprobs"]) == pytest.approx(played.completion.logprobs)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(), st.sampled_from(["plain", "zstd"]))
def test_any_text_survives(text: str, texts: str) -> None:
    assert decode_text(Encoder(texts=texts).text(utf8(text)), {}.get) == utf8(text).decode()


async def test_a_number_that_is_not_finite_becomes_null(tmp_path: Path) -> None:
    bad = Metrics(stage=0, step=1, at=1.0, values={"train/loss/mean": float("nan")})
    root = await write_run(tmp_path / "toy-1", [bad])
    with open_run(root) as reader:
        assert reader.rows("SELECT value FROM metrics") == [{"value": None}]


async def write_until_refused(root: Path, kept: list[int]) -> None:
    """Puts turns of 20 kB; appends the number of each flushed one to `kept`."""
    async with open_writer(root, Options()) as writer:
        for number in range(10_000):
            await writer.put(turn(number, completion="x" * 20_000 + str(number)))
            await writer.flush()
            kept.append(number)


def fill(root: Path) -> int:
    """Writes until the disk is full; returns the number of flushed turns."""
    kept: list[int] = []
    with pytest.raises(MachineError, match=r"cannot write: .*full") as refused:
        anyio.run(write_until_refused, root, kept)
    assert "\n" not in str(refused.value)
    assert "forge resume toy-1" in str(refused.value)
    return len(kept)


def test_a_database_at_its_size_limit_keeps_flushed_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge.store.write import writer as module

    connect = module._connect

    def limited(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.execute("PRAGMA max_page_count = 120")
        return connection

    monkeypatch.setattr(module, "_connect", limited)
    root = tmp_path / "toy-1"
    root.mkdir()
    kept = fill(root)
    with open_run(root) as reader:
        assert reader.value("SELECT count(*) FROM turns") == kept


async def test_a_nearly_full_disk_stops_the_run_but_records_its_end(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    root.mkdir()
    async with open_writer(root, Options(min_free_bytes=1 << 60)) as writer:
        await writer.flush()
        with pytest.raises(MachineError, match=r"disk nearly full: .* min_free_bytes"):
            await writer.put(turn(0))
        await writer.put(Event(at=1.0, kind="stop", message="disk full"))
        await writer.flush()
    with open_run(root) as reader:
        assert reader.value("SELECT count(*) FROM turns") == 1
        assert reader.value("SELECT count(*) FROM events") == 1


async def test_every_put_and_flush_after_a_failure_raises_it(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    root.mkdir()
    async with open_writer(root, Options()) as writer:
        writer._thread._fail(sqlite3.OperationalError("disk I/O error"))
        for ask in (lambda: writer.put(turn(0)), writer.flush, lambda: writer.put(turn(1))):
            with pytest.raises(MachineError, match="disk I/O error"):
                await ask()
        writer._thread.failure = None
    with open_run(root) as reader:
        assert reader.value("SELECT count(*) FROM turns") == 0


@pytest.mark.parametrize("opener", [open_run, lambda root: anyio.run(write_run, root, [])])
@pytest.mark.parametrize(
    ("pragma", "said"),
    [
        ("user_version = 99", r"schema 99 is newer than .* knows 1;"),
        ("application_id = 7", "no database of this forge .*0x7, not 0x46474532"),
    ],
)
def test_another_schema_is_refused_by_writer_and_reader_in_one_line(
    tmp_path: Path, opener: Callable[[Path], object], pragma: str, said: str
) -> None:
    root = tmp_path / "toy-1"
    anyio.run(write_run, root, small_run())
    edit(root / "run.db", f"PRAGMA {pragma}")
    before = (root / "run.db").read_bytes()
    with pytest.raises(ConfigError, match=said) as error:
        opener(root)
    assert "\n" not in str(error.value)
    assert (root / "run.db").read_bytes() == before


async def test_a_file_that_is_not_a_database_is_one_line(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    root.mkdir()
    (root / "run.db").write_text("hello " * 1000)
    with pytest.raises(MachineError, match="cannot be read"):
        open_run(root)


def token_groups(root: Path) -> list[int]:
    with open_run(root) as reader:
        return [
            row["group_id"] for row in reader.rows("SELECT DISTINCT group_id FROM tokens.tokens")
        ]


@pytest.mark.parametrize(
    ("keep", "kept"), [("all", [1, 2, 3, 4]), ("untrained", [3, 4]), ("last:3", [2, 3, 4])]
)
async def test_keep_tokens_never_drops_untrained_tokens(
    tmp_path: Path, keep: str, kept: list[int]
) -> None:
    root = tmp_path / "toy-1"
    root.mkdir()
    played = [group(n, [[Status.WRONG], [Status.CORRECT]], step=n) for n in (1, 2, 3, 4)]
    offered: list[list[Sample]] = [samples(g, first_id=10 * g.group_id) for g in played]
    async with open_writer(root, Options(keep_tokens=keep)) as writer:
        await writer.put(attempt(), *played)
        await writer.put(*(sample for each in offered for sample in each))
        await writer.put(*(use(s, step=1) for s in offered[0]))
        await writer.put(*(use(s, step=2) for s in offered[1]))
        await writer.put(use(offered[2][0], step=3))
        await writer.flush()
    assert token_groups(root) == kept


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
