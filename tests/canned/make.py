"""Makes `quickstart-1.tar.xz` from a finished quickstart: `python -m tests.canned.make RUN`.

Kept whole: events, processes, attempts, policies, metrics, evaluations, logs. Kept in part: groups,
each with all of its rollouts, turns, verdicts, samples and texts, so that every view stays
consistent: some of each training step, and every evaluation's of a quarter of the problems.
Problems that no kept group plays are deleted. Tokens are those of the last training step, as with
`keep_tokens = "last:1"`. Captured programs are left out, for their size.
"""

import shutil
import sqlite3
import sys
import tarfile
import tempfile
from pathlib import Path

from forge.store.schema.rollups import BY_STEP, settle_while
from tests.canned import ARCHIVE

MAX_BYTES = 700_000
GROUPS_A_STEP = 3
"""Groups kept of about six per step: those with a signal first, then by group_id."""
EVERY_PROBLEM = 4
"""One in this many problems of the evaluations is kept."""
SHOWN_ROOT = "/home/user/runs/quickstart-1"
"""Replaces the run's original directory in rows and files."""
FILES = ("experiment.toml", "STATUS.json", "lock", "batches", "logs")

KEEP = """
CREATE TEMP TABLE kept AS
    SELECT group_id FROM (
        SELECT group_id, row_number() OVER (PARTITION BY stage, step ORDER BY is_flat, group_id)
            AS place FROM groups WHERE purpose = 'train' AND num_rollouts > 0)
        WHERE place <= :a_step
    UNION SELECT group_id FROM groups JOIN (
        SELECT problem_id, row_number() OVER (ORDER BY problem_id) AS place
        FROM groups WHERE purpose = 'eval' GROUP BY problem_id) USING (problem_id)
        WHERE purpose = 'eval' AND place % :every = 0
"""
BY_GROUP = (
    *("trajectories", "turns", "verdicts", "turn_programs", "turn_protocols", "turn_shapes"),
    *("turn_calls", "samples", "sample_uses", "groups"),
)
TRIM_TEXTS = """
DELETE FROM turn_programs;
DELETE FROM programs;
DELETE FROM problems WHERE problem_id NOT IN (SELECT problem_id FROM groups);
DELETE FROM texts WHERE text_id NOT IN (
    SELECT prompt_id FROM turns WHERE prompt_id IS NOT NULL
    UNION SELECT completion_id FROM turns WHERE completion_id IS NOT NULL
    UNION SELECT code_id FROM turns WHERE code_id IS NOT NULL
    UNION SELECT feedback_id FROM turns WHERE feedback_id IS NOT NULL
    UNION SELECT detail_id FROM verdicts WHERE detail_id IS NOT NULL
    UNION SELECT message_id FROM turn_calls WHERE message_id IS NOT NULL
    UNION SELECT result_id FROM turn_calls WHERE result_id IS NOT NULL
    UNION SELECT source_id FROM problems);
"""
REOPEN_ALL = (
    "".join(f"DELETE FROM rolled_{name};\n" for name in BY_STEP)
    + "DELETE FROM open_groups;\nDELETE FROM open_steps;\n"
    + """
INSERT INTO open_steps (stage, step)
    SELECT stage, step FROM groups UNION SELECT stage, step FROM sample_uses ORDER BY 1, 2;
INSERT INTO open_groups SELECT DISTINCT group_id FROM turns t
    WHERE NOT EXISTS (SELECT 1 FROM groups g WHERE g.group_id = t.group_id);
"""
)
"""Makes every roll-up again from the rows."""
LAST_STEP = """
SELECT group_id FROM groups WHERE purpose = 'train' AND (stage, step) = (
    SELECT stage, step FROM groups WHERE purpose = 'train' ORDER BY stage DESC, step DESC LIMIT 1)
"""


def main(run: Path) -> None:
    """Writes the archive; exits with an error if it is too large."""
    with tempfile.TemporaryDirectory() as spare:
        root = Path(spare) / "quickstart-1"
        root.mkdir()
        groups = trim_run(run, root)
        trim_tokens(run, root, groups)
        copy_files(run, root)
        pack(root)
    size = ARCHIVE.stat().st_size
    if size > MAX_BYTES:
        sys.exit(f"{ARCHIVE}: {size} bytes; at most {MAX_BYTES}")


def trim_run(run: Path, root: Path) -> list[int]:
    """Copies run.db without the rest; returns the groups of the last training step."""
    copy = _copy(run / "run.db", root / "run.db")
    copy.execute(KEEP, {"a_step": GROUPS_A_STEP, "every": EVERY_PROBLEM})
    for table in BY_GROUP:
        copy.execute(f"DELETE FROM {table} WHERE group_id NOT IN (SELECT group_id FROM kept)")
    copy.executescript(TRIM_TEXTS)
    copy.execute("UPDATE events SET data = replace(data, ?, ?)", (str(run), SHOWN_ROOT))
    copy.executescript(REOPEN_ALL)
    settle_while(copy, is_wanted=lambda: True)
    groups = [row[0] for row in copy.execute(LAST_STEP)]
    _close(copy)
    return groups


def trim_tokens(run: Path, root: Path, groups: list[int]) -> None:
    """Copies tokens.db with the tokens of these groups."""
    copy = _copy(run / "tokens.db", root / "tokens.db")
    marks = ", ".join("?" * len(groups))
    copy.execute(f"DELETE FROM tokens WHERE group_id NOT IN ({marks})", groups)
    _close(copy)


def copy_files(run: Path, root: Path) -> None:
    """Copies the other files, without weights, checkpoints and data."""
    for name in FILES:
        if (run / name).is_dir():
            ignored = shutil.ignore_patterns("*.npz")  # samples: tokens.db has them
            shutil.copytree(run / name, root / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(run / name, root / name)
    for path in (p for p in root.rglob("*") if p.suffix in (".log", ".json", ".toml")):
        if not path.is_symlink():
            path.write_text(path.read_text().replace(str(run), SHOWN_ROOT))
    for name in ("checkpoints", "weights"):
        (root / name).mkdir()


def pack(root: Path) -> None:
    """Writes a reproducible archive."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = 0
        return member

    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        archive.add(root, arcname=root.name, filter=plain)


def _copy(source: Path, target: Path) -> sqlite3.Connection:
    origin = sqlite3.connect(f"file:{source}?mode=ro", uri=True)
    copy = sqlite3.connect(target, isolation_level=None)
    origin.backup(copy)
    origin.close()
    return copy


def _close(copy: sqlite3.Connection) -> None:
    copy.execute("VACUUM")
    copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    copy.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
