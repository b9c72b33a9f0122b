"""run.db and tokens.db opened read-write: schema, pragmas, transactions over both, copies of their
WALs, free space.

Used on the writer's thread. Tokens are committed before the rows that name them, so each turn in
run.db has its tokens, also after a power cut; then the commit is `acknowledged`.

Retention of token arrays, `[store] keep_tokens`: `all` keeps every turn's while tokens.db is below
20 GB, then acts as `untrained`. `untrained` keeps what a resume needs: groups being played, or
offered and not yet used. `last:N` keeps those and the groups of the last N steps. Tokens of an
unused sample are never dropped.

A checkpoint empties the WAL too, unless a reader still needs it: what stays in a WAL can be lost
with it. It waits for no reader.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import tomllib
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from forge.errors import MachineError
from forge.store.acknowledged import Acknowledger
from forge.store.reader import is_corrupt
from forge.store.schema.create import TOKEN_SCHEMA, create, create_run
from forge.version import __version__

if TYPE_CHECKING:
    from forge.store.layout import RunPaths

logger = logging.getLogger(__name__)

CHECKPOINT_PAGES = 16_000
"""64 MB of WAL before it is copied into the database, which costs an fsync."""
WITHOUT_TOKENS = "move it and its -wal away: a new one is made; untrained groups are played again"
KEEP_ALL_BYTES = 20_000_000_000

CACHE_KIB = 2048
"""Page cache of each connection, SQLite's default size. SQLite fills it whatever the use: one of
64 MB saves 15 % of the time of a turn at full speed, and grows for hours."""

BUSY_TIMEOUT = "PRAGMA busy_timeout = 5000"

_HELD = "SELECT json_group_array(group_id) FROM (SELECT DISTINCT group_id FROM tokens)"
_SPENT = """
WITH latest AS (SELECT stage, step FROM groups WHERE num_rollouts > 0
    ORDER BY stage DESC, step DESC LIMIT 1)
SELECT group_id FROM json_each(:held) held
    CROSS JOIN groups g ON g.group_id = held.value CROSS JOIN latest
WHERE num_rollouts > 0
    AND (:is_strict OR g.stage < latest.stage OR g.step <= latest.step - :num_steps)
    AND (purpose <> 'train' OR is_flat
        OR EXISTS (SELECT 1 FROM samples s WHERE s.group_id = g.group_id))
    AND NOT EXISTS (SELECT 1 FROM samples s WHERE s.group_id = g.group_id
        AND NOT EXISTS (SELECT 1 FROM sample_uses u WHERE u.sample_id = s.sample_id))
"""
"""Asked of the groups that have tokens only: there are as many after a week as after an hour."""


class Databases:
    """Both connections."""

    def __init__(self, paths: RunPaths, *, texts: str, now: float) -> None:
        """Creates both databases where they are absent, and the run's row.

        Raises:
            ConfigError: a database has another schema, or is not forge's.
            MachineError: a database is damaged.
            sqlite3.Error: a database cannot be opened or written.
        """
        self._paths = paths
        with ExitStack() as opened:
            with _explained(paths.run_db, advice=f'"forge doctor {paths.name}" looks closer'):
                self.run = _connect(paths.run_db)
                opened.callback(self.run.close)
                create_run(self.run, path=paths.run_db)
            with _explained(paths.tokens_db, advice=WITHOUT_TOKENS):
                self.tokens = _connect(paths.tokens_db)
                opened.callback(self.tokens.close)
                create(self.tokens, path=paths.tokens_db, tables=TOKEN_SCHEMA)
            self._put_run(texts=texts, now=now)
            self._acknowledger = Acknowledger(self.run, paths.acknowledged)
            opened.pop_all()
        self.checkpoint()

    def begin(self) -> None:
        """Starts a transaction in both."""
        self.tokens.execute("BEGIN IMMEDIATE")
        self.run.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commits tokens.db, then run.db, and acknowledges the rows."""
        self._acknowledger.reserve()
        self.tokens.execute("COMMIT")
        self.run.execute("COMMIT")
        self._acknowledger.acknowledge()

    def rollback(self) -> None:
        """Rolls back whichever transaction is open."""
        for connection in (self.tokens, self.run):
            if connection.in_transaction:
                connection.rollback()

    def checkpoint(self) -> bool:
        """Copies the WALs into the databases, outside of a transaction; logs what fails. False if
        one of them is not empty then, or something failed."""
        is_done = True
        for connection in (self.tokens, self.run):
            try:
                connection.execute("PRAGMA busy_timeout = 0")
                row = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                is_done &= not row[0]
            except sqlite3.Error as error:  # full disk: readers still read the WAL
                logger.warning("%s: checkpoint: %s", self._paths.root, error)
                is_done = False
            finally:
                connection.execute(BUSY_TIMEOUT)
        try:
            self._acknowledger.sync()
        except OSError as error:
            logger.warning("%s: checkpoint: %s", self._paths.root, error)
            is_done = False
        return is_done

    def drop_spent_tokens(self, keep_tokens: str) -> None:
        """Deletes the token arrays that `keep_tokens` need not keep, after a commit."""
        if keep_tokens == "all" and self._token_bytes() < KEEP_ALL_BYTES:
            return
        name, _, number = keep_tokens.partition(":")
        (held,) = self.tokens.execute(_HELD).fetchone()
        rule = {"held": held, "is_strict": name != "last", "num_steps": int(number or 0)}
        groups = self.run.execute(_SPENT, rule).fetchall()
        self.tokens.execute("BEGIN IMMEDIATE")
        self.tokens.executemany("DELETE FROM tokens WHERE group_id = ?", groups)
        self.tokens.execute("COMMIT")

    def close(self) -> None:
        """Copies the WALs into the databases and closes them."""
        self.checkpoint()
        with suppress(OSError):  # full disk
            self._acknowledger.close()
        for connection in (self.tokens, self.run):
            connection.close()

    def _token_bytes(self) -> int:
        """Size of tokens.db, which SQLite knows also after the run directory was moved."""
        sql = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return self.tokens.execute(sql).fetchone()[0]

    def _put_run(self, *, texts: str, now: float) -> None:
        """Writes the run's only row; its name is that of the directory now."""
        experiment = ""
        if self._paths.experiment.exists():
            experiment = self._paths.experiment.read_text(encoding="utf-8")
        self.run.execute(
            "INSERT INTO runs SELECT ?, ?, ?, '', ?, '', 0 WHERE NOT EXISTS (SELECT 1 FROM runs)",
            (self._paths.name, _kind_of(experiment), now, __version__),
        )
        self.run.execute(
            "UPDATE runs SET name = ?, experiment = coalesce(nullif(?, ''), experiment), texts = ?",
            (self._paths.name, experiment, texts),
        )


def _kind_of(experiment: str) -> str:
    """`eval` for a run of `forge eval`; otherwise `experiment`."""
    try:
        table = tomllib.loads(experiment).get("eval", {})
    except tomllib.TOMLDecodeError:
        return "experiment"
    return "eval" if "suite" in table else "experiment"


@contextmanager
def _explained(path: Path, *, advice: str) -> Generator[None]:
    """Turns damage of a database into one line that names it."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if is_corrupt(error):
            raise MachineError(f"{path}: damaged: {error}; {advice}") from error
        raise


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=True)
    connection.execute(BUSY_TIMEOUT)
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "temp_store = MEMORY",
        f"cache_size = -{CACHE_KIB}",
        f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
    ):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def free_bytes(path: Path) -> int:
    """Bytes available to this user; 0 for a missing directory."""
    return shutil.disk_usage(path).free if os.path.isdir(path) else 0
