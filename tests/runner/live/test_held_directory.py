"""A run whose directory is moved, deleted or replaced while it runs ends with one line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from forge.config.schema.experiment import NotifyTable
from forge.errors import MachineError
from forge.runner.live.held_directory import hold_directory
from forge.store.layout import RunPaths
from forge.store.ownership import read_status
from forge.store.reader import open_run
from tests.runner.supervised import Supervised

if TYPE_CHECKING:
    from forge.runner.work import Work

pytestmark = pytest.mark.anyio


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervised:
    return Supervised(tmp_path, monkeypatch)


async def test_a_directory_in_its_place_explains_nothing(tmp_path: Path) -> None:
    async with hold_directory(RunPaths(tmp_path)) as home:
        assert not home.is_moved
        assert home.paths.root == tmp_path
        with pytest.raises(KeyError, match="a bug"), home.explaining():
            raise KeyError("a bug")


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_renamed_directory_explains_any_error(is_replaced: bool, tmp_path: Path) -> None:
    root, now = tmp_path / "toy-1", tmp_path / "kept"
    root.mkdir()

    async def write() -> None:
        async with hold_directory(RunPaths(root)) as home:
            root.rename(now)
            if is_replaced:
                root.mkdir()
            assert home.paths.root == now
            raise FileNotFoundError(str(root))

    with pytest.raises(MachineError, match=f"^{root}: moved to {now} while .*forge resume {now}"):
        await write()


async def test_a_deleted_directory_is_said_to_be_deleted(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    root.mkdir()
    async with hold_directory(RunPaths(root)) as home:
        root.rmdir()
        assert home.paths.root == root
        error = home.error()
        assert str(error).startswith(f"{root}: deleted, or moved to another disk")
        root.mkdir()


async def test_a_run_that_is_renamed_stops_with_3_and_says_where_it_is(
    supervised: Supervised, tmp_path: Path
) -> None:
    root = supervised.paths.root
    notify = NotifyTable(command=f'echo "$FORGE_EVENT $FORGE_RUN_DIR" > {tmp_path}/told')
    supervised.experiment = supervised.experiment.model_copy(update={"notify": notify})
    now = root.with_name("renamed")

    async def work(self: Work) -> None:
        root.rename(now)
        await anyio.sleep_forever()

    ending = await supervised.end(work)
    assert ending is not None
    assert ending.code == 3
    assert f"moved to {now} while" in ending.message
    assert not root.exists(), "nothing of the run may appear under the old name"
    with open_run(RunPaths(now)) as reader:
        code, reason = reader.query("SELECT exit_code, reason FROM attempts").rows[0]
    assert (code, reason) == (3, ending.message)
    assert read_status(RunPaths(now))["state"] == "failed"
    assert (tmp_path / "told").read_text() == f"failed {now}\n"


async def test_a_run_whose_directory_is_deleted_stops_with_3(supervised: Supervised) -> None:
    async def work(self: Work) -> None:
        shutil.rmtree(supervised.paths.root)
        await anyio.sleep_forever()

    ending = await supervised.end(work)
    assert ending is not None
    assert (ending.code, "deleted, or moved" in ending.message) == (3, True)
    assert os.listdir(supervised.paths.root.parent) == ["x.toml"]
