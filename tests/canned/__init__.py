"""A run of `forge run experiments/quickstart.toml` (all stages, on two CPU cores), trimmed to whole
groups by `tests/canned/make.py`.

`quickstart-1.tar.xz` holds the run directory: run.db as its writer left it (texts plain), tokens.db
with the last step's tokens, the resolved experiment, STATUS.json and the logs. Tests use the
fixture `canned_run`.
"""

import tarfile
from pathlib import Path

from forge.store.layout import RunPaths

ARCHIVE = Path(__file__).with_name("quickstart-1.tar.xz")


def unpack(store_dir: Path) -> RunPaths:
    """Unpacks the run into `store_dir`."""
    store_dir.mkdir(parents=True, exist_ok=True)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(store_dir, filter="data")
    return RunPaths((store_dir / "quickstart-1").resolve())
