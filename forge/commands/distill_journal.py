"""The directory of a distillation: every answer, every verdict, and the rows of finished attempts.

    accepted.jsonl    rows to train on: `[data] source = "file"`, format = "messages"
    rejected.jsonl    rows of the other attempts, without the column `messages`
    answers.journal   settings, then answers and verdicts of attempts that are not finished

A line is on disk when the call that writes it returns. An attempt is finished once its row is
written; the lines of finished attempts leave the journal when it is opened again. Promise: after
`kill -9` at any moment, no stored answer is requested again and none is lost.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError, MachineError
from forge.records import Finish, Verdict
from forge.serve.remote.teacher import TeacherAnswer

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from pathlib import Path

ACCEPTED = "accepted.jsonl"
REJECTED = "rejected.jsonl"
ANSWERS = "answers.journal"
"""No suffix of a file of rows: a directory as `data.path` must not read it."""
LOCK = ".lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """An answer of an unfinished attempt, and its verdict if it has one."""

    answer: TeacherAnswer
    host: str
    """Host of the server that gave it."""
    prompt_hash: str
    """Hash of the first messages about the problem."""
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """Facts of a finished attempt; the same names as the columns of its row."""

    problem_id: str
    attempt: int
    accepted: bool
    status: str
    stop_reason: str
    num_turns: int
    speedup: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    prompt_hash: str


class Journal:
    """An open directory. Made by `open_journal`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.rows: dict[str, RowFacts] = {}
        """Finished attempts by their keys."""
        self._answers: defaultdict[str, dict[int, StoredAnswer]] = defaultdict(dict)
        self._files: dict[str, int] = {}
        """Descriptors by names of files."""

    def answer(self, key: str, turn: int) -> StoredAnswer | None:
        """The stored answer of a turn, counted from 0."""
        return self._answers[key].get(turn) if key in self._answers else None

    def prompt_hashes(self) -> Iterator[tuple[str, str]]:
        """Keys of all attempts, and the hashes of the prompts that they answer."""
        yield from ((key, row.prompt_hash) for key, row in self.rows.items())
        for key, turns in self._answers.items():
            yield from ((key, stored.prompt_hash) for stored in turns.values())

    def put_answer(self, key: str, turn: int, stored: StoredAnswer) -> None:
        """Store an answer."""
        self._append(ANSWERS, _answer_line(key, turn, stored))
        self._answers[key][turn] = stored

    def put_verdict(self, key: str, turn: int, verdict: Verdict) -> None:
        """Store the verdict on a stored answer."""
        self._append(ANSWERS, _verdict_line(key, turn, verdict))
        turns = self._answers[key]
        turns[turn] = replace(turns[turn], verdict=verdict)

    def put_row(self, key: str, row: Mapping[str, Any]) -> None:
        """Store the row of a finished attempt, by its column `accepted`."""
        self._append(ACCEPTED if row["accepted"] else REJECTED, row)
        self.rows[key] = _facts(row)
        self._answers.pop(key, None)

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        file = self._files[name]
        end = os.fstat(file).st_size
        rest = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        except OSError:
            with suppress(OSError):  # the next line must not follow half of this one
                os.ftruncate(file, end)
            raise

    def load(self, pinned: Mapping[str, Any]) -> None:
        """Read what is there, and open the files. Raises ConfigError if it has other settings."""
        for name in (ACCEPTED, REJECTED):
            if (self.out / name).exists() and not (self.out / ANSWERS).exists():
                raise ConfigError(
                    f"--out {self.out}: found {name} without {ANSWERS}, so it is no directory of "
                    "a distillation; name another one"
                )
            for number, row in self._read(name):
                with _named(self.out / name, number):
                    self.rows[row["sample_key"]] = _facts(row)
        for number, line in self._read(ANSWERS):
            with _named(self.out / ANSWERS, number):
                self._take(line, pinned)
        self._rewrite(pinned)
        for name in (ACCEPTED, REJECTED):
            self._files[name] = _open_to_append(self.out / name)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            os.close(file)

    def _take(self, line: Mapping[str, Any], pinned: Mapping[str, Any]) -> None:
        """Keep a line of the journal, unless its attempt is finished."""
        if line["kind"] == "settings":
            return _check_settings(self.out, line["settings"], pinned)
        key, turn = line["key"], line["turn"]
        if key in self.rows:
            return
        if line["kind"] == "verdict":
            verdict = Verdict.from_json(line["verdict"])
            self._answers[key][turn] = replace(self._answers[key][turn], verdict=verdict)
            return
        answer: dict[str, Any] = {**line["answer"], "finish": Finish(line["answer"]["finish"])}
        self._answers[key][turn] = StoredAnswer(
            answer=TeacherAnswer(**answer),
            host=line["host"],
            prompt_hash=line["prompt_hash"],
        )

    def _rewrite(self, pinned: Mapping[str, Any]) -> None:
        """Replace the journal by its settings and the lines of unfinished attempts."""
        spare = self.out / f".{ANSWERS}.partial"
        spare.unlink(missing_ok=True)
        self._files[ANSWERS] = _open_to_append(spare)
        self._append(ANSWERS, {"kind": "settings", "settings": dict(pinned)})
        for key, turns in self._answers.items():
            for turn, stored in turns.items():
                self._append(ANSWERS, _answer_line(key, turn, stored))
                if stored.verdict is not None:
                    self._append(ANSWERS, _verdict_line(key, turn, stored.verdict))
        spare.replace(self.out / ANSWERS)

    def _read(self, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Numbers and objects of a file's lines. A last line without its end, which a kill cut off,
        is cut off the file."""
        path, end = self.out / name, 0
        if not path.exists():
            return
        with path.open("r+b") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                end += len(line)
                with _named(path, number):
                    yield number, dict(json.loads(line))
            file.truncate(end)


@contextmanager
def open_journal(out: Path, *, pinned: Mapping[str, Any]) -> Generator[Journal]:
    """Opens or creates the directory for this process alone.

    Raises:
        ConfigError: another process writes it, its answers were made with other settings, or a
            file in it is damaged.
        MachineError: it cannot be written.
    """
    journal = Journal(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / LOCK).open("ab")
    except OSError as error:
        raise MachineError(f"--out {out}: cannot be written: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--out {out}: another process writes there") from None
        try:
            journal.load(pinned)
            yield journal
        finally:
            journal.close()


def _open_to_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _check_settings(out: Path, found: Mapping[str, Any], pinned: Mapping[str, Any]) -> None:
    for name, value in pinned.items():
        if found.get(name) != value:
            raise ConfigError(
                f"--out {out}: its answers were made with {name} = {json.dumps(found.get(name))}; "
                f"found {json.dumps(value)}; name another directory, or the same setting"
            )


@contextmanager
def _named(path: Path, number: int) -> Generator[None]:
    """Turn errors of a line that is not ours into a ConfigError with its place."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}, line {number}: not written by this version of forge data distill: {error!r}"
        ) from error


def _facts(row: Mapping[str, Any]) -> RowFacts:
    return RowFacts(**{name: row[name] for name in RowFacts.__dataclass_fields__})


def _answer_line(key: str, turn: int, stored: StoredAnswer) -> dict[str, Any]:
    place = {"kind": "answer", "key": key, "turn": turn}
    origin = {"host": stored.host, "prompt_hash": stored.prompt_hash}
    return {**place, **origin, "answer": asdict(stored.answer)}


def _verdict_line(key: str, turn: int, verdict: Verdict) -> dict[str, Any]:
    return {"kind": "verdict", "key": key, "turn": turn, "verdict": verdict.to_json()}
