"""A hub name of a data set becomes a directory in the cache, or a one-line error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import Experiment
from forge.errors import ConfigError, MachineError
from forge.runner.prepare import hub as locating
from forge.runner.prepare.hub import locate_rows

NOWHERE = "http://127.0.0.1:9"
"""Nothing listens on the discard port."""


def experiment(**tables: Any) -> Experiment:
    values = {"name": "x", "model": {"init": "tiny"}, "stage": [{"kind": "eval"}]}
    return Experiment.model_validate({**values, **tables})


def file(path: str | Path) -> dict[str, Any]:
    return {"source": "file", "path": Path(path)}


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """A hub whose `org/json` has JSON only, and `org/none` no rows; asked for name and pattern."""
    asked: list[tuple[str, str]] = []

    def fetch(name: str, *, key: str, kind: str, patterns: tuple[str, ...], say: Any) -> Path:
        asked.append((name, patterns[0]))
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        suffix = {"org/json": "json", "org/none": "txt"}.get(name, "parquet")
        (folder / f"rows.{suffix}").write_text("")
        return folder

    monkeypatch.setattr(locating, "fetch_snapshot", fetch)
    return asked


def test_hub_names_become_directories_and_paths_stay(
    fetched: list[tuple[str, str]], tmp_path: Path
) -> None:
    here = tmp_path / "here.jsonl"
    here.write_text("")
    sources = [file("org/book"), file(here), {"source": "generated"}]
    found = locate_rows(experiment(data=file("org/json"), problems={"sources": sources}))
    assert found.data.path == tmp_path / "org/json"
    assert found.problems.sources is not None
    assert [part.path for part in found.problems.sources] == [tmp_path / "org/book", here, None]
    assert fetched == [
        ("org/json", "*.parquet"),
        ("org/json", "*.jsonl"),
        ("org/book", "*.parquet"),
    ]
    single = locate_rows(experiment(problems=file("org/book")))
    assert single.problems.path == tmp_path / "org/book"


def test_a_data_set_without_rows_is_an_error(fetched: list[tuple[str, str]]) -> None:
    with pytest.raises(ConfigError, match=r"data\.path: org/none: a data set without Parquet"):
        locate_rows(experiment(data=file("org/none")))


def test_without_a_network_a_hub_name_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    with pytest.raises(MachineError) as caught:
        locate_rows(experiment(problems=file("org/book")))
    (line,) = str(caught.value).splitlines()
    assert line.startswith("problems.path: org/book: not whole in the local cache, and the hub")
    assert line.endswith("or give a file or a directory")
