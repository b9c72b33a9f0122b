"""A user's data from end to end: traces with answers by the compiler are built into training
rows, and one experiment does SFT on them, an evaluation, GRPO on a directory in KernelBench's
layout with levels to train on and a level that is held out, and another evaluation."""

import json
import warnings
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.e2e.commands import forge, opened
from tests.e2e.experiments import TINY

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(400)]

EXPERIMENT = """\
name = "full"
{tiny}[problems]
source = "dir"
path = "bench"
train_levels = [1, 2]
heldout_levels = [3]
overrides = {{ dim = 8 }}
allow_flagged = true
[data]
source = "file"
path = "built/train.parquet"
[judge]
workers = 1
[reward]
compile_error = -1.0
[rollout]
group_size = 4
groups_per_step = 2
max_turns = 1
max_completion_tokens = 400
max_replacements = 4.0
max_staleness = 1
[eval]
samples = 1
max_turns = 1
[store]
texts = "plain"
[[stage]]
kind = "sft"
steps = 160
batch_size = 8
learning_rate = 4e-3
save_every = 80
[[stage]]
kind = "eval"
[[stage]]
kind = "grpo"
steps = 2
learning_rate = 1e-5
save_every = 2
[[stage]]
kind = "eval"
"""

BUILD = """\
[input]
path = "book.parquet"
format = "trinity"
[prompt]
preset = "tiny"
[filters]
length = false
judged = true
[heldout]
paths = ["bench/level3"]
[judge]
workers = 1
[output]
dir = "built"
"""

MODULE = """\
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.{op}(x)

dim = {dim}

def get_inputs():
    return [torch.randn(dim, 8)]

def get_init_inputs():
    return []
"""
TRAINED, HELDOUT = ("abs", "exp", "tanh", "sin"), ("cos", "neg")


def module(op: str, *, dim: int = 8) -> str:
    return MODULE.format(op=op, dim=dim)


def book(*ops: str) -> list[dict[str, object]]:
    """A row for each operation, with the compiler's answer."""
    with warnings.catch_warnings(action="ignore"):  # of torch's own imports
        from forge.data.inductor.compiler.graph import answer
    rows: list[dict[str, object]] = []
    for op in ops:
        answered = answer(module(op))
        result = {"correctness": True}
        rows.append(
            {
                "sample_key": op, "pytorch_code": module(op), "triton_code": answered.code,
                "result": result,
            }
        )  # fmt: skip
    return rows


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for level, ops in ((1, TRAINED[:2]), (2, TRAINED[2:]), (3, HELDOUT)):
        for number, op in enumerate(ops, start=1):
            path = tmp_path / "bench" / f"level{level}" / f"{number}_{op}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(module(op, dim=4096))
    (tmp_path / "build.toml").write_text(BUILD)
    return tmp_path


def write_experiment(project: Path) -> None:
    (project / "x.toml").write_text(EXPERIMENT.format(tiny=TINY))


def build_all(project: Path) -> None:
    """Builds rows of whatever problems, also held-out ones, without a judge."""
    every = ["--set", "heldout.paths=[]", "--set", "filters.judged=false"]
    forge("data", "build", "build.toml", *every, cwd=project)


def write_rows(project: Path, rows: list[dict[str, object]]) -> None:
    parquet.write_table(pa.Table.from_pylist(rows), project / "book.parquet")


def test_rows_of_the_compiler_teach_a_model_kernels_in_one_experiment(project: Path) -> None:
    write_rows(project, book(*TRAINED, HELDOUT[0]))
    forge("data", "build", "build.toml", cwd=project)
    manifest = json.loads((project / "built" / "manifest.json").read_text())
    reasons = {step["step"]: step["reasons"] for step in manifest["steps"] if step["reasons"]}
    assert list(reasons) == ["contamination"]
    assert list(reasons["contamination"].values()) == [1]
    assert manifest["rows"]["train"] == len(TRAINED)

    write_experiment(project)
    forge("run", "x.toml", cwd=project)
    with opened(project / "runs" / "full-1") as db:
        splits = dict(db.execute("SELECT problem_id, split FROM problems"))
        evaluations = db.execute(
            "SELECT stage, num_problems, num_trained_problems FROM v_evaluations ORDER BY stage"
        ).fetchall()
        (steps,) = db.execute("SELECT count(DISTINCT step) FROM sample_uses").fetchone()
        (correct,) = db.execute(
            "SELECT count(*) FROM v_turns WHERE purpose = 'train' AND is_correct"
        ).fetchone()
    heldout = sorted(name for name, split in splits.items() if split == "heldout")
    assert heldout == ["level3/1_cos", "level3/2_neg"]
    assert len(splits) == 6
    assert evaluations == [("eval-1", 2, 0), ("eval-3", 2, 0)]
    assert steps == 2
    assert correct, "the kernels of the built rows are what the judge takes"


def test_rows_are_trained_on_as_often_as_asked_and_an_evaluation_on_their_problems_says_so(
    project: Path,
) -> None:
    write_rows(project, book(*HELDOUT))
    build_all(project)
    write_experiment(project)
    sft = '{ kind = "sft", epochs = 4, batch_size = 2, learning_rate = 1e-3 }'
    done = forge(
        "run", "x.toml", "--set", "problems.duplicates=allow",
        "--set", f'stage=[{sft}, {{ kind = "eval" }}]', cwd=project,
    )  # fmt: skip
    root = project / "runs" / "full-1"
    assert (root / "weights" / "sft-000004").is_dir(), "2 rows by 2, four times"
    assert "trained on 2 of 2 problems" in done.stdout + done.stderr
    shown = json.loads(forge("show", "full-1", "--json", cwd=project).stdout)
    assert [row["num_trained_problems"] for row in shown["evaluations"]] == [2]
    assert "trained on 2 of 2 problems" in (root / "report.html").read_text()
