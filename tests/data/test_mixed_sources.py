"""Problems of paths that may hold anything: the columns of a row tell its format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from forge.data.sources.formats import FORMATS
from forge.data.sources.loading import COLUMNS, read_mixed
from forge.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

CODE = "class Net:\n    pass\n"
INFO = {"level": 2, "problem_id": 7}
ROWS: dict[str, tuple[dict[str, Any], str, str]] = {
    "kernelbench": (
        {"code": CODE, "level": 1, "problem_id": 3, "name": "3_A"}, "level1/3_A", "Model",
    ),
    "kernelbook": ({"python_code": CODE, "entry_point": "Net", "uuid": 5}, "kernelbook/5", "Net"),
    "tritonforge": ({"label": CODE, "extra_info": INFO}, "level2/7", "Model"),
    "cuda-agent": ({"code": CODE, "ops": "[]"}, "cuda-agent/1", "Model"),
    "drkernel": ({"reward_model": {"ground_truth": CODE}}, "drkernel/1", "Model"),
    "drkernel-coldstart": (
        {"original_python_code": CODE, "entry_point": "Net"}, "drkernel-coldstart/1", "Net",
    ),
    "": ({"pytorch_code": CODE, "answer": "x"}, "rows.jsonl:1", "Model"),
}  # fmt: skip


def test_every_format_is_known_by_its_columns() -> None:
    assert COLUMNS.keys() == FORMATS.keys() == ROWS.keys() - {""}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_row_is_read_in_the_format_of_its_columns(tmp_path: Path, name: str) -> None:
    row, problem_id, entry_point = ROWS[name]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (found,) = read_mixed(tmp_path / "rows.jsonl", key="heldout.paths")
    assert (found.problem_id, found.source, found.entry_point) == (problem_id, CODE, entry_point)


def test_a_directory_gives_its_problem_files_and_rows_in_order(tmp_path: Path) -> None:
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "2_b.py").write_text(CODE)
    (tmp_path / "level1" / "_skipped.py").write_text(CODE)
    (tmp_path / "a.jsonl").write_text(json.dumps({"code": CODE}) + "\n")
    found = [one.problem_id for one in read_mixed(tmp_path, key="heldout.paths")]
    assert found == ["a.jsonl:1", "level1/2_b.py"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "", "a.txt: found .txt; .py, .*jsonl"),
        ("a.jsonl", '{"level": 1}', "row 1: found columns level; one of code, python_code"),
        ("a.jsonl", '{"code": "x", "level": "?", "problem_id": 1}', "row 1: level: found '.'; a n"),
        ("a.jsonl", "{", "heldout.paths: .*a.jsonl, row 1"),
    ],
)
def test_what_is_no_problem_is_named(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=expected.replace("; .py", r"; \*.py")):
        list(read_mixed(tmp_path / name, key="heldout.paths"))
