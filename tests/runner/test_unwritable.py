"""A store that cannot be written ends a command with one line and exit 3."""

import errno
import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from forge.errors import ChildDied, MachineError
from forge.exits import ending_of
from forge.runner.attempt import RunLog
from forge.store.layout import RunPaths, open_run_lock, read_status, write_status


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    mounted = subprocess.run(["mount", "--bind", str(path), str(path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting needs root")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(path)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_lock_and_status_of_a_read_only_run_are_one_line_of_exit_3(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write_status(paths, {"state": "running"})
    with read_only(tmp_path):
        with (
            pytest.raises(MachineError, match=r"cannot be written: Read-only file system"),
            open_run_lock(paths),
        ):
            pass
        with pytest.raises(MachineError, match=r"STATUS\.json: cannot be written: Read-only"):
            write_status(paths, {"state": "done"})
    assert read_status(paths) == {"state": "running"}
    assert not list(tmp_path.glob(".STATUS*"))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EFBIG, errno.EIO])
def test_a_refusal_of_the_file_system_is_exit_3_before_the_deaths_that_follow(number: int) -> None:
    refused = OSError(number, os.strerror(number), "runs/x-1/batches/0-000001.npz")
    ending = ending_of(BaseExceptionGroup("", [ChildDied("trainer died"), refused]))
    assert (ending.code, ending.message) == (
        3,
        f"runs/x-1/batches/0-000001.npz: {os.strerror(number)}",
    )


def test_a_log_that_cannot_be_written_prints_nothing_and_raises_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = logging.LogRecord("forge", logging.INFO, "x.py", 1, "step %d", (1,), None)
    absent = RunLog(tmp_path / "absent" / "supervisor.log", delay=True)
    absent.handle(record)
    full = RunLog("/dev/full")
    full.handle(record)
    mistake = logging.LogRecord("forge", logging.INFO, "x.py", 1, "step %d", ("x",), None)
    good = RunLog(tmp_path / "supervisor.log")
    assert capsys.readouterr().err == ""
    good.handle(mistake)
    assert "Logging error" in capsys.readouterr().err, "a mistake of ours is still shown"
    for handler in (absent, full, good):
        with suppress(OSError):
            handler.close()
