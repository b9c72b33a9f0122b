"""Kept baselines: found again, by two at once, and not used on a card that has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.timing.baseline import Baseline, Baselines, baselines_path

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ONE = Baseline(gpu_us=(150.0, 151.0, 152.0), probe_us=100.0)


def test_a_baseline_is_found_by_another_judge(tmp_path: Path) -> None:
    path = tmp_path / "forge" / "baselines.db"
    first, second = Baselines(path), Baselines(path)
    assert second.get("a") is None
    first.put("a", ONE)
    assert second.get("a") == ONE
    second.put("a", Baseline(gpu_us=(1.0,), probe_us=2.0))
    assert first.get("a") != ONE


def test_each_card_has_a_file_that_no_other_machine_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    paths = [baselines_path(uuid) for uuid in ("GPU-1a", "GPU-2b", "../MIG-3c")]
    folder = tmp_path / "forge" / "baselines"
    assert paths == [folder / "GPU-1a.db", folder / "GPU-2b.db", folder / "___MIG-3c.db"]
    Baselines(paths[0]).put("a", ONE)
    assert Baselines(paths[1]).get("a") is None


def test_a_card_that_runs_slower_than_then_is_another_card() -> None:
    assert ONE.is_current(102.0)
    assert not ONE.is_current(106.0)
    assert not ONE.is_current(90.0)


def test_a_baseline_that_jumps_is_not_steady() -> None:
    assert ONE.is_steady()
    assert ONE.time().us == 151.0
    assert Baseline(gpu_us=(5.0, 5.5, 6.0, 5.2), probe_us=1.0).is_steady()
    assert not Baseline(gpu_us=(150.0, 150.0, 200.0, 210.0), probe_us=1.0).is_steady()
