"""The id of a run: it stays when the directory is moved, and a copy gets one of its own."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from forge.store.identity import (
    Identity,
    Settled,
    read_identity,
    recorded_identity,
    settle_identity,
)
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from tests.store.storefactory import attempt, write_run

pytestmark = pytest.mark.anyio


def begin(root: Path) -> Settled:
    """The identity of an attempt that begins in a directory."""
    root.mkdir(parents=True, exist_ok=True)
    return settle_identity(RunPaths(root))


def test_a_run_keeps_its_id_from_attempt_to_attempt(tmp_path: Path) -> None:
    first = begin(tmp_path / "toy-1")
    again = begin(tmp_path / "toy-1")
    assert again.identity == first.identity
    assert (first.news, again.news) == ("", "")
    assert begin(tmp_path / "toy-2").identity.id != first.identity.id


def test_a_renamed_run_keeps_its_id_and_says_where_it_was(tmp_path: Path) -> None:
    first = begin(tmp_path / "toy-1")
    (tmp_path / "toy-1").rename(tmp_path / "kept")
    moved = begin(tmp_path / "kept")
    assert moved.identity.id == first.identity.id
    assert moved.news == f"kept was moved here from {tmp_path}/toy-1"
    assert begin(tmp_path / "kept").news == ""


def test_a_run_on_another_disk_or_from_a_backup_keeps_its_id(tmp_path: Path) -> None:
    first = begin(tmp_path / "toy-1")
    shutil.copytree(tmp_path / "toy-1", tmp_path / "other" / "toy-1")
    shutil.rmtree(tmp_path / "toy-1")
    moved = begin(tmp_path / "other" / "toy-1")
    assert moved.identity.id == first.identity.id
    assert "moved here from" in moved.news


@pytest.mark.parametrize("place", ["toy-1-copy", "elsewhere/toy-1"])
def test_a_copy_gets_an_id_of_its_own_and_its_original_keeps_its_id(
    place: str, tmp_path: Path
) -> None:
    first = begin(tmp_path / "toy-1")
    shutil.copytree(tmp_path / "toy-1", tmp_path / place)
    copied = begin(tmp_path / place)
    assert copied.identity.id != first.identity.id
    assert f"is a copy of {tmp_path}/toy-1" in copied.news
    assert copied.identity.id in copied.news
    assert begin(tmp_path / place) == Settled(identity=copied.identity, is_recorded=False)
    assert begin(tmp_path / "toy-1").identity == first.identity


def test_of_an_original_that_was_renamed_and_its_copy_the_copy_gets_a_new_id(
    tmp_path: Path,
) -> None:
    first = begin(tmp_path / "toy-1")
    shutil.copytree(tmp_path / "toy-1", tmp_path / "copy")
    (tmp_path / "toy-1").rename(tmp_path / "renamed")
    assert begin(tmp_path / "copy").identity.id != first.identity.id
    assert begin(tmp_path / "renamed").identity.id == first.identity.id


def test_a_copy_under_the_original_s_name_gets_a_new_id(tmp_path: Path) -> None:
    first = begin(tmp_path / "toy-1")
    (tmp_path / "toy-1").rename(tmp_path / "renamed")
    shutil.copytree(tmp_path / "renamed", tmp_path / "toy-1")
    assert begin(tmp_path / "toy-1").identity.id != first.identity.id
    assert begin(tmp_path / "renamed").identity.id == first.identity.id


def test_a_backup_beside_a_run_whose_device_has_another_number_changes_nothing(
    tmp_path: Path,
) -> None:
    first = begin(tmp_path / "toy-1").identity
    paths = RunPaths(tmp_path / "toy-1")
    paths.identity.write_text(json.dumps({**json.loads(paths.identity.read_text()), "device": 1}))
    shutil.copytree(paths.root, tmp_path / "backup")
    assert begin(paths.root).identity == first


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", "\0", "[" * 100_000, '{"id": 1, "path": "/x", "device": 1, "inode": true}'],
)
def test_an_unreadable_identity_is_restored_from_the_store(content: str, tmp_path: Path) -> None:
    first = begin(tmp_path / "toy-1").identity
    paths = RunPaths(tmp_path / "toy-1")
    paths.identity.write_text(content)
    settled = settle_identity(paths, recorded=first)
    assert settled == Settled(identity=first)
    assert read_identity(paths) == first


async def test_the_store_has_the_last_identity(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    settled = begin(root)
    moved = replace(settled.identity, path="/elsewhere")
    events = [settled.event(at=1.0), Settled(identity=moved, news="moved").event(at=2.0)]
    await write_run(root, [attempt(), *events])
    with open_run(RunPaths(root)) as reader:
        assert recorded_identity(reader) == moved
        messages = reader.query("SELECT message FROM events ORDER BY event_id").rows
    assert list(messages) == [(f"id {settled.identity.id}",), ("moved",)]


def test_a_foreign_path_cannot_control_the_terminal(tmp_path: Path) -> None:
    begin(tmp_path / "toy-1")
    paths = RunPaths(tmp_path / "toy-1")
    data = json.loads(paths.identity.read_text())
    paths.identity.write_text(json.dumps({**data, "path": "/x\x1b[2J\udcff", "inode": 1}))
    assert begin(paths.root).news == r"toy-1 was moved here from '/x\x1b[2J\udcff'"


def test_what_is_no_identity_is_none() -> None:
    assert Identity.of({"id": "x"}) is None


def test_a_link_to_a_run_is_no_copy_of_it(tmp_path: Path) -> None:
    first = begin(tmp_path / "store" / "toy-1")
    os.symlink(tmp_path / "store" / "toy-1", tmp_path / "store" / "latest")
    (tmp_path / "store").rename(tmp_path / "moved")
    assert begin(tmp_path / "moved" / "toy-1").identity.id == first.identity.id
