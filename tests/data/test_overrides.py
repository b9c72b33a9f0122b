"""Values for module constants: for all files, for single ones, and names that stand for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.config.schema import ProblemsTable
from forge.data.problem_files import Overrides
from forge.data.sources.loading import load_source
from forge.errors import ConfigError

SOURCE = """N = 1
class Model: pass
def get_inputs(): pass
def get_init_inputs(): pass
"""
AMONG = ["level1/3_a.py", "level2/3_b.py", "level2/4_c.py"]


def test_a_problems_own_values_come_before_those_for_all() -> None:
    overrides = Overrides.from_table({"N": 8, "4": {"N": 4, "M": 2}, "level1/3": {"M": 1}})
    assert overrides.of("level2/4_c.py", among=AMONG) == {"N": 4, "M": 2}
    assert overrides.of("level1/3_a.py", among=AMONG) == {"N": 8, "M": 1}
    assert overrides.of("level2/3_b.py", among=AMONG) == {"N": 8}


def test_a_name_without_effect_is_a_mistake_in_one_line() -> None:
    overrides = Overrides.from_table(
        {"Nn": 8, "3": {"N": 1}, "4": {"M": 1}, "level2/3_b": {"never": 1}}
    )
    constants = {"level1/3_a.py": {"N"}, "level2/4_c.py": {"N"}}
    assert list(overrides.mistakes(constants, among=AMONG, prefix="x.")) == [
        "x.Nn: no file has this module constant; did you mean N?",
        "x.3: no single problem of this name or number",
        "x.4: level2/4_c.py has no module constant M; there are N",
    ]


def test_a_run_gives_single_problems_sizes_of_their_own(tmp_path: Path) -> None:
    for name in ("1_a", "2_b"):
        (tmp_path / f"{name}.py").write_text(SOURCE)
    table = ProblemsTable(source="dir", path=tmp_path, overrides={"N": 5, "2_b": {"N": 7}})
    sources = {each.problem_id: each.source for each in load_source(table)}
    assert sources["1_a"].startswith("N = 5\n")
    assert sources["2_b"].startswith("N = 7\n")
    table = ProblemsTable(source="dir", path=tmp_path, overrides={"9": {"N": 7}})
    with pytest.raises(ConfigError, match=r"problems\.overrides\.9: no single problem"):
        load_source(table)
