"""The Python API of a run: rows for pandas, with the filters of the command line."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import forge
from forge.commands import export_parquet as view
from forge.errors import ConfigError, MachineError
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.views import rollouts
from forge.views.api import Rows, Run
from tests.store.storefactory import attempt, group, small_run, timing, turn, write_run


@pytest.fixture
def run(canned_run: RunPaths) -> Iterator[Run]:
    with forge.open(canned_run.root) as opened:
        yield opened


def test_rollouts_have_one_row_each_and_turns_belong_to_them(run: Run) -> None:
    rows = run.rollouts()
    assert len(rows) == run.value("SELECT count(*) FROM trajectories")
    assert len(run.turns()) == sum(row["num_turns"] for row in rows)
    first = rows[0]
    turns = run.turns(rollout=first["rollout_id"])
    assert " ".join(turn["status"] for turn in turns) == first["statuses"]
    assert max(turn["reward"] for turn in turns) == first["reward"]
    assert sum(turn["num_completion_tokens"] for turn in turns) == first["num_completion_tokens"]
    assert first["is_correct"] == ("correct" in first["statuses"].split())


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        ({"status": "correct"}, lambda row: "correct" in row["statuses"].split()),
        ({"level": 2, "stage": 3}, lambda row: (row["level"], row["stage"]) == (2, 3)),
        ({"problem": "softmax-*"}, lambda row: row["problem_id"].startswith("softmax-")),
        ({"purpose": "eval"}, lambda row: row["purpose"] == "eval"),
        ({"step": 20}, lambda row: row["step"] == 20),
    ],
)
def test_filters_keep_exactly_the_matching_rows(
    run: Run, wanted: dict[str, Any], holds: Any
) -> None:
    every, found = run.rollouts(), run.rollouts(**wanted)
    assert found
    assert found == [row for row in every if holds(row)]
    ids = [each["rollout_id"] for each in rollouts.load_rollouts(
        run, rollouts.Filter(**wanted, limit=None))]  # fmt: skip
    assert ids == [row["rollout_id"] for row in found], "as `forge rollouts` finds them"


def test_the_best_come_first_and_a_limit_holds(run: Run) -> None:
    rewards = [row["reward"] for row in run.rollouts(best=True)]
    assert rewards == sorted(rewards, reverse=True)
    assert len(run.rollouts(best=True, limit=3)) == 3
    assert run.rollouts(min_speedup=1.0) == []


def test_steps_kernels_and_any_query_are_rows(run: Run) -> None:
    assert [row["step"] for row in run.steps()] == list(range(1, 21))
    assert [row["rank"] for row in run.kernels(limit=2)] == [1, 2]
    assert isinstance(run.rows("SELECT 1 AS x"), Rows)


def test_a_batch_is_rebuilt_with_the_tokens_that_were_kept(run: Run) -> None:
    rows = run.batch(stage=3, step=20)
    assert len(rows) == run.value("SELECT count(*) FROM v_samples WHERE stage = 3 AND step = 20")
    for row in rows:
        assert len(row["prompt_ids"]) == row["num_prompt_tokens"]
        assert len(row["completion_ids"]) == len(row["logprobs"]) == row["num_completion_tokens"]
    early = run.batch(stage=3, step=2)
    assert early
    assert {row["logprobs"] for row in early} == {None}, "the canned run kept the last step's"


def test_rows_become_a_dataframe(run: Run) -> None:
    pandas = pytest.importorskip("pandas")
    frame: Any = run.rollouts(purpose="train").to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    by_level = frame.groupby("level")["is_correct"].mean()
    assert by_level[1] > by_level[4]
    assert run.rows("SELECT 1 AS x WHERE false").to_pandas().empty


def test_missing_pandas_is_a_one_line_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MachineError, match="pandas is not installed") as error:
        run.steps().to_pandas()
    assert "\n" not in str(error.value)


def test_an_unknown_filter_lists_the_known_ones(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"statsu: no such filter; allowed: .*status"):
        run.rollouts(statsu="correct")
    with pytest.raises(ConfigError, match="--status"):
        run.rollouts(status="corect")
    with pytest.raises(ConfigError, match=r"g12\.r3"):
        run.turns(rollout="12")
    with pytest.raises(ConfigError, match="--step 3rd: not an integer"):
        run.rollouts(step="3rd")


def test_opening_a_run_imports_neither_pandas_nor_torch(canned_run: RunPaths) -> None:
    code = (
        "import sys, forge\n"
        "assert 'forge.views' not in sys.modules\n"
        f"with forge.open({str(canned_run.root)!r}) as run: run.rollouts(limit=1)\n"
        "bad = {'torch', 'pandas', 'numpy', 'pyarrow', 'matplotlib', 'textual', 'rich'}\n"
        "assert not bad & set(sys.modules), bad & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "toy-1"
    anyio.run(lambda: write_run(path, small_run(), texts="zstd"))
    return path


def ask(root: Path, table: str) -> list[dict[str, Any]]:
    with open_run(root) as reader:
        return reader.rows(view.TABLES[table])


def export(root: Path, out: Path) -> list[dict]:
    with open_run(root) as reader:
        return view.export(reader, out=out)


def test_parquet_has_every_table_with_its_rows_types_and_texts(root: Path, tmp_path: Path) -> None:
    found = export(root, tmp_path)
    assert {each["name"] for each in found} == view.TABLES.keys()
    for each in found:
        rows = ask(root, each["name"])
        assert parquet.read_table(each["path"]).to_pylist() == rows
        assert (each["num_rows"], each["num_bytes"]) == (
            len(rows),
            Path(each["path"]).stat().st_size,
        )
    types = {f.name: str(f.type) for f in parquet.read_schema(tmp_path / "turns.parquet")}
    assert (types["reward"], types["turn"], types["code"]) == ("double", "int64", "string")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{name}.parquet" for name in view.TABLES
    )


def test_every_numeric_column_is_exported_as_a_number(tmp_path: Path) -> None:
    """A column whose name is missing in the list of types would be text."""
    speed = timing(2.0)
    records = [attempt(), *small_run()[1:], turn(70, speed=speed), group(71, [], step=9)]
    anyio.run(write_run, tmp_path / "toy-1", records)
    export(tmp_path / "toy-1", tmp_path / "out")
    for name in view.TABLES:
        schema = parquet.read_schema(tmp_path / "out" / f"{name}.parquet")
        texts = {field.name for field in schema if field.type == pyarrow.string()}
        rows = ask(tmp_path / "toy-1", name)
        numbers = {k for row in rows for k, v in row.items() if isinstance(v, int | float)}
        assert not texts & numbers, name


def test_batches_are_concatenated(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "BATCH_ROWS", 5)
    export(root, tmp_path)
    file = parquet.ParquetFile(tmp_path / "turns.parquet")
    assert file.num_row_groups == 5
    assert file.read().to_pylist() == ask(root, "turns")


def test_an_export_overwrites_no_file(root: Path, tmp_path: Path) -> None:
    export(root, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match="is there already; another folder"):
        export(root, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_parquet_without_pyarrow_is_one_line(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MachineError, match="pyarrow is not installed"):
        export(root, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_fails_leaves_no_file(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(view.TABLES, "turns", "SELECT code AS num_code FROM v_turns")
    with pytest.raises(pyarrow.ArrowInvalid):
        export(root, tmp_path)
    assert list(tmp_path.iterdir()) == []
