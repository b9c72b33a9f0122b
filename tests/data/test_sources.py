"""Problems from rows of files, several sources in one run, and their division without leaks; paths
that may hold anything, where the columns of a row tell its format."""

from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import ProblemsTable
from forge.data.problems import load_problems
from forge.data.sources.loading import COLUMNS, read_mixed
from forge.data.sources.splitting import num_shared
from forge.errors import ConfigError
from forge.records import Problem, Split
from tests.data.build.samples import write_rows as write

OPS = ("abs", "exp", "tanh", "sin", "cos", "neg", "relu", "sigmoid")


def source(op: str, *, name: str = "Model", size: int = 8) -> str:
    return f"""import torch

class {name}(torch.nn.Module):
    def forward(self, x):
        return torch.{op}(x)

size = {size}

def get_inputs():
    return [torch.randn(size)]

def get_init_inputs():
    return []
"""


def kernelbench(level: int, number: int, op: str, **changes: Any) -> dict[str, Any]:
    row = {"code": source(op), "level": level, "name": f"{number}_{op}", "problem_id": number}
    return {**row, **changes}


ROWS: dict[str, tuple[dict[str, Any], tuple[str, str, int, str]]] = {
    "kernelbench": (kernelbench(2, 7, "exp"), ("level2/7_exp", "level2", 2, "Model")),
    "kernelbook": (
        {"python_code": source("exp", name="Exp"), "entry_point": "Exp", "uuid": 5, "sha": "x"},
        ("kernelbook/5", "kernelbook", 1, "Exp"),
    ),
    "tritonforge": (
        {
            "prompt": [{"role": "user", "content": "write"}],
            "label": source("exp"),
            "instance_id": "kernel_bench_triton_lv2_7",
            "extra_info": {"level": 2, "problem_id": "7", "problem_name": "7_exp.py"},
        },
        ("level2/7_exp", "level2", 2, "Model"),
    ),
    "cuda-agent": (
        {"code": source("exp"), "ops": '["torch.exp"]', "data_source": "torch#3"},
        ("cuda-agent/1", "cuda-agent", 3, "Model"),
    ),
    "drkernel": (
        {
            "data_source": "cuda_llm",
            "prompt": [],
            "reward_model": {"ground_truth": source("exp", name="Exp"), "style": "rule"},
            "extra_info": {"entry_point": "Exp", "level": "2", "uuid": "u"},
        },
        ("drkernel/u", "drkernel", 2, "Exp"),
    ),
    "drkernel-coldstart": (
        {"messages": [], "original_python_code": source("exp"), "entry_point": "Exp", "uuid": 9},
        ("drkernel-coldstart/9", "drkernel-coldstart", 1, "Model"),
    ),
    "harvest": (
        {"id": "mine/exp", "code": source("exp"), "kind": "elementwise", "level": 1, "origin": "a"},
        ("mine/exp", "elementwise", 1, "Model"),
    ),
}


def load(path: Path, **keys: Any) -> list[Problem]:
    values = {"source": "file", "path": path, "num_heldout": 50, **keys}
    return load_problems(ProblemsTable.model_validate(values), seed=0)


def splits(problems: list[Problem]) -> dict[str, str]:
    return {problem.problem_id: str(problem.split) for problem in problems}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("format", ROWS)
def test_each_format_gives_its_problem(format: str, suffix: str, tmp_path: Path) -> None:
    row, expected = ROWS[format]
    (found,) = load(write(tmp_path / f"rows.{suffix}", [row]), format=format)
    assert (found.problem_id, found.family, found.level, found.entry_point) == expected
    assert "torch.exp" in found.source


@pytest.mark.parametrize(
    ("format", "row", "words"),
    [
        (
            "kernelbench",
            {"text": "x"},
            r"problems.path: .*row 1 \(.*code: found nothing; .* \(columns here: text\)",
        ),
        (
            "kernelbench",
            {**kernelbench(1, 1, "exp"), "level": "one"},
            "level: found 'one'; a number",
        ),
        ("kernelbook", {"python_code": source("exp")}, "entry_point: found nothing"),
        ("tritonforge", {"label": source("exp")}, "extra_info: found nothing; an object"),
        ("drkernel", {"reward_model": "x"}, "reward_model: found str; an object"),
        ("cuda-agent", {"ops": "[]"}, r"code: found nothing; a text \(columns here: ops\)"),
    ],
)
def test_a_missing_column_is_named_with_the_columns_that_are_there(
    format: str, row: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "rows.jsonl", [row])
    with pytest.raises(ConfigError, match=words):
        load(path, format=format)


def test_rows_without_usable_code_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    codes = ["", "def f(:", "x = 1", source("abs")]
    rows = [kernelbench(1, n, f"op{n}", code=code) for n, code in enumerate(codes)]
    with caplog.at_level("INFO"):
        (found,) = load(write(tmp_path / "rows.jsonl", rows))
    assert found.problem_id == "level1/3_op3"
    for words in ("1 without code in code", "1 that are no Python", "1 no Model and no get_inputs"):
        assert words in caplog.text
    with pytest.raises(ConfigError, match=r"no problem in format .*left out: 1 without code"):
        load(write(tmp_path / "rows.jsonl", rows[:1]))


def test_windows_line_ends_and_tabs_are_read(tmp_path: Path) -> None:
    code = source("abs").replace("    ", "\t").replace("\n", "\r\n")
    (found,) = load(write(tmp_path / "rows.jsonl", [kernelbench(1, 1, "abs", code=code)]))
    assert "\r" not in found.source
    assert "\treturn torch.abs(x)" in found.source


def test_a_broken_line_is_named_by_its_row(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [kernelbench(1, 1, "abs")])
    path.write_text(path.read_text() + "\n" + '{"code": "x\n')
    with pytest.raises(ConfigError, match=r"^problems.path: .*rows.jsonl, row 2: broken JSON"):
        load(path)


def test_other_rows_of_one_id_are_refused_and_the_same_row_counts_once(tmp_path: Path) -> None:
    same = [kernelbench(1, 1, "abs")] * 2
    assert len(load(write(tmp_path / "rows.jsonl", same))) == 1
    other = [*same, kernelbench(1, 1, "abs", code=source("exp"))]
    with pytest.raises(ConfigError, match=r"row 3 .*level1/1_abs: another row has this id"):
        load(write(tmp_path / "rows.jsonl", other))


def test_rows_take_overrides_shapes_and_patterns(tmp_path: Path) -> None:
    rows = [kernelbench(level, 1, "abs") for level in (1, 2)]
    path = write(tmp_path / "rows.jsonl", rows)
    (found,) = load(path, include=["level2/*"], overrides={"size": 3})
    assert (found.problem_id, found.level) == ("level2/1_abs", 2)
    assert "size = 3\n" in found.source
    (found,) = load(path, include=["level2/*"], shapes=[{"size": 4}, {"size": 5}])
    assert [shape.name for shape in found.shapes] == ["size=4", "size=5"]
    with pytest.raises(ConfigError, match=r"problems\.overrides\.sise: .*did you mean size"):
        load(path, overrides={"sise": 3})
    with pytest.raises(ConfigError, match=r"no problem that matches level7/\*"):
        load(path, include=["level7/*"])


@pytest.fixture
def three_levels(tmp_path: Path) -> Path:
    rows = [kernelbench(n % 3 + 1, n, op) for n, op in enumerate(OPS)]
    return write(tmp_path / "rows.parquet", rows)


def test_levels_divide_problems_into_training_and_evaluation(three_levels: Path) -> None:
    found = load(three_levels, train_levels=[1], heldout_levels=[3])
    assert {(p.level, str(p.split)) for p in found} == {(1, "grpo"), (3, "heldout")}
    found = load(three_levels, heldout_levels=[3])
    assert {(p.level, str(p.split)) for p in found} == {
        (1, "grpo"), (2, "grpo"), (3, "heldout"),
    }  # fmt: skip
    found = load(three_levels, train_levels=[1, 2], num_heldout=2)
    assert {p.level for p in found} == {1, 2}
    assert sum(p.split is Split.HELDOUT for p in found) == 2


@pytest.mark.parametrize("key", ["train_levels", "heldout_levels"])
def test_a_level_without_problems_is_an_error(key: str, three_levels: Path) -> None:
    with pytest.raises(ConfigError, match=f"problems.{key}: found 4, .*there are 1, 2, 3"):
        load(three_levels, **{key: [4]})


@pytest.mark.parametrize("seed", range(3))
def test_near_duplicates_are_on_one_side_of_a_random_division(seed: int, tmp_path: Path) -> None:
    rows = [
        kernelbench(1, 10 * n + copy, op, code=source(op, size=copy + 1))
        for n, op in enumerate(OPS)
        for copy in range(3)
    ]
    table = ProblemsTable(source="file", path=write(tmp_path / "r.jsonl", rows), num_heldout=5)
    found = load_problems(table, seed=seed)
    heldout = [p for p in found if p.split is Split.HELDOUT]
    assert len(heldout) == 6, "two groups of three hold five or more"
    names = {problem.problem_id.rpartition("_")[2] for problem in heldout}
    assert len(names) == 2
    assert all(p.problem_id.rpartition("_")[2] not in names for p in found if p not in heldout)


def test_a_training_problem_that_duplicates_a_heldout_one_is_refused_dropped_or_allowed(
    tmp_path: Path,
) -> None:
    rows = [kernelbench(1, 1, "abs"), kernelbench(1, 2, "exp"), kernelbench(3, 3, "other")]
    rows[2]["code"] = source("abs", size=99).replace("(self, x)", "(self, value)").replace(
        "torch.abs(x)", "torch.abs(value)"
    )  # fmt: skip
    path = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ConfigError) as caught:
        load(path, heldout_levels=[3])
    (line,) = str(caught.value).splitlines()
    assert "level1/1_abs is to be trained on and level3/3_other is held out" in line
    assert 'problems.duplicates = "drop"' in line
    assert splits(load(path, heldout_levels=[3], duplicates="drop")) == {
        "level1/2_exp": "grpo",
        "level3/3_other": "heldout",
    }
    found = load(path, heldout_levels=[3], duplicates="allow")
    assert len(found) == 3
    assert num_shared([each for each in found if each.split is Split.HELDOUT], found) == 1


def several(*parts: dict[str, Any], **keys: Any) -> ProblemsTable:
    return ProblemsTable.model_validate({"sources": list(parts), **keys})


def test_several_sources_have_uses_and_origins(tmp_path: Path) -> None:
    book = [
        {"python_code": source(op, name="M"), "entry_point": "M", "uuid": n}
        for n, op in enumerate(OPS[:3])
    ]
    rows = write(tmp_path / "book.parquet", book)
    (tmp_path / "bench" / "level3").mkdir(parents=True)
    (tmp_path / "bench" / "level3" / "1_cos.py").write_text(source("cos"))
    table = several(
        {"source": "file", "format": "kernelbook", "path": rows, "use": "train", "weight": 2.0},
        {"source": "dir", "path": tmp_path / "bench", "use": "heldout", "name": "bench"},
    )
    found = load_problems(table, seed=0)
    assert [(p.problem_id, str(p.split), p.origin) for p in found] == [
        ("kernelbook/0", "grpo", "book"),
        ("kernelbook/1", "grpo", "book"),
        ("kernelbook/2", "grpo", "book"),
        ("bench/level3/1_cos", "heldout", "bench"),
    ]
    assert table.weights == {"book": 2.0}


def test_the_generator_may_be_one_of_several_sources(three_levels: Path) -> None:
    table = several(
        {"source": "generated", "use": "train", "weight": 1.0},
        {"source": "file", "path": three_levels, "name": "bench", "use": "heldout"},
        num_problems=200,
    )
    found = load_problems(table, seed=0)
    heldout = {problem.origin for problem in found if problem.split is Split.HELDOUT}
    assert heldout == {"bench"}
    assert sum(problem.split is Split.SFT for problem in found) > 0


def test_the_same_ids_in_two_sources_need_a_name(three_levels: Path) -> None:
    part = {"source": "file", "path": three_levels}
    with pytest.raises(ConfigError, match=r"problems\.sources\.1\.name: level1/0_abs is in prob"):
        load_problems(several(part, part), seed=0)
    with pytest.raises(ConfigError, match=r"problems\.sources\.1\.path: .*no such file"):
        load_problems(several(part, {"source": "file", "path": three_levels / "x.json"}), seed=0)


def test_every_format_is_known_by_its_columns() -> None:
    assert COLUMNS.keys() == ROWS.keys()


@pytest.mark.parametrize("format", [*ROWS, ""])
def test_a_row_is_read_in_the_format_of_its_columns(format: str, tmp_path: Path) -> None:
    plain = {"pytorch_code": source("exp"), "answer": "x"}, ("rows.jsonl:1", "", 0, "Model")
    row, (problem_id, _, _, entry_point) = ROWS.get(format, plain)
    (found,) = read_mixed(write(tmp_path / "rows.jsonl", [row]), key="heldout.paths")
    assert (found.problem_id, found.entry_point) == (problem_id, entry_point)
    assert "torch.exp" in found.source


def test_a_directory_gives_its_problem_files_and_rows_in_order(tmp_path: Path) -> None:
    (tmp_path / "level1").mkdir()
    for name in ("2_b.py", "_skipped.py"):
        (tmp_path / "level1" / name).write_text(source("abs"))
    write(tmp_path / "a.jsonl", [{"code": source("abs")}])
    found = [one.problem_id for one in read_mixed(tmp_path, key="heldout.paths")]
    assert found == ["a.jsonl:1", "level1/2_b.py"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "", "a.txt: found .txt; .*jsonl"),
        ("a.jsonl", '{"level": 1}', "row 1: found columns level; one of code, python_code"),
        ("a.jsonl", '{"code": "x", "level": "?", "problem_id": 1}', "row 1: level: found '.'; a n"),
        ("a.jsonl", "{", "heldout.paths: .*a.jsonl, row 1"),
    ],
)
def test_what_is_no_problem_is_named(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=expected):
        list(read_mixed(tmp_path / name, key="heldout.paths"))
