"""A run of `forge run experiments/quickstart.toml` (all stages, on two CPU cores), trimmed to whole
groups by `tests/canned/make.py`.

`quickstart-1.tar.xz` holds the run directory: run.db as its writer left it (texts plain), tokens.db
with the last step's tokens, the resolved experiment, STATUS.json and the logs. Tests use the
fixture `canned_run`; `unpack(is_migrated=False)` gives the run in its older schema.
"""

from __future__ import annotations

import sqlite3
import tarfile
from pathlib import Path

from forge.store.layout import RunPaths
from forge.store.schema.migrations import RUN_MIGRATIONS, TOKEN_MIGRATIONS, migrate
from forge.store.schema.run_views import VIEWS

ARCHIVE = Path(__file__).with_name("quickstart-1.tar.xz")


def unpack(store_dir: Path, *, is_migrated: bool = True) -> RunPaths:
    """Unpacks the run into `store_dir` and migrates its databases, as a writer does."""
    store_dir.mkdir(parents=True, exist_ok=True)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(store_dir, filter="data")
    paths = RunPaths((store_dir / "quickstart-1").resolve())
    if is_migrated:
        _migrate(paths)
    return paths


def _migrate(paths: RunPaths) -> None:
    for path, migrations, views in (
        (paths.run_db, RUN_MIGRATIONS, VIEWS),
        (paths.tokens_db, TOKEN_MIGRATIONS, ""),
    ):
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            migrate(connection, path=path, migrations=migrations, views=views)
        finally:
            connection.close()
