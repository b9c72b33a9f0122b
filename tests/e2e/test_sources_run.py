"""One experiment from a user's data: SFT on KernelBook-shaped rows, then GRPO on a directory in
KernelBench's layout with levels to train on and a level that is held out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.e2e.commands import forge, opened

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(400)]

EXPERIMENT = """\
name = "full"
[model]
init = "tiny"
[model.tiny]
hidden_size = 32
num_layers = 2
num_heads = 2
num_kv_heads = 1
intermediate_size = 64
vocab_size = 400
[problems]
source = "dir"
path = "bench"
train_levels = [1, 2]
heldout_levels = [3]
overrides = { dim = 8 }
allow_flagged = true
[data]
source = "file"
path = "book.parquet"
format = "kernelbook"
[judge]
workers = 1
[reward]
compile_error = -1.0
[rollout]
group_size = 4
groups_per_step = 2
max_turns = 1
max_completion_tokens = 48
max_replacements = 4.0
max_staleness = 1
[eval]
samples = 1
max_turns = 1
[store]
texts = "plain"
[[stage]]
kind = "sft"
steps = 120
batch_size = 8
learning_rate = 1e-2
save_every = 60
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

MODULE = """\
import torch

class {name}(torch.nn.Module):
    def forward(self, x):
        return torch.{op}(x)

dim = {dim}

def get_inputs():
    return [torch.randn(dim)]

def get_init_inputs():
    return {arguments}
"""
ANSWERS = (
    "import torch\nclass {name}New(torch.nn.Module):\n    def forward(self, x):\n        return x",
    "class {name}New(\n",
)
"""An answer without a kernel and one that does not compile: rewards 0 and -1, so groups have a
signal."""
TRAINED, HELDOUT = ("abs", "exp", "tanh", "sin"), ("cos", "neg")


def module(op: str, *, name: str = "Model", dim: int = 4096, arguments: str = "[]") -> str:
    return MODULE.format(op=op, name=name, dim=dim, arguments=arguments)


def book(ops: tuple[str, ...]) -> list[dict[str, object]]:
    return [
        {
            "python_code": module(op, name=name, dim=4, arguments="[[], {}]"),
            "entry_point": name,
            "triton_code": answer.format(name=name),
            "uuid": f"{op}-{name}-{number}",
        }
        for op in ops
        for name in ("Model", "Net")
        for number, answer in enumerate(ANSWERS)
    ]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for level, ops in ((1, TRAINED[:2]), (2, TRAINED[2:]), (3, HELDOUT)):
        for number, op in enumerate(ops, start=1):
            path = tmp_path / "bench" / f"level{level}" / f"{number}_{op}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(module(op))
    write_rows(tmp_path, book(TRAINED))
    (tmp_path / "x.toml").write_text(EXPERIMENT)
    return tmp_path


def write_rows(project: Path, rows: list[dict[str, object]]) -> None:
    parquet.write_table(pa.Table.from_pylist(rows), project / "book.parquet")


def test_sft_on_rows_then_grpo_on_problems_is_one_run(project: Path) -> None:
    planted = book(TRAINED) + book(("cos",))
    write_rows(project, planted)
    refused = forge("run", "x.toml", cwd=project)
    assert refused.returncode == 2
    (line,) = [line for line in refused.stderr.splitlines() if "held out" in line]
    assert "row kernelbook/cos-Model-0" in line
    assert "level3/1_cos is held out" in line
    assert "(and 3 more)" in line

    done = forge("run", "x.toml", "--set", "problems.duplicates=drop", cwd=project)
    assert done.returncode == 0, done.stderr[-3000:]
    run = project / "runs" / "full-2"
    pairs = [json.loads(line) for line in (run / "data" / "pairs.jsonl").read_text().splitlines()]
    assert len(pairs) == 16, "four rows ask for the code of a held-out problem"
    with opened(run) as db:
        splits = dict(db.execute("SELECT problem_id, split FROM problems"))
        evaluations = db.execute(
            "SELECT stage, num_problems, num_trained_problems FROM v_evaluations ORDER BY stage"
        ).fetchall()
        (steps,) = db.execute("SELECT count(DISTINCT step) FROM sample_uses").fetchone()
    assert sorted(name for name, split in splits.items() if split == "heldout") == [
        "level3/1_cos",
        "level3/2_neg",
    ]
    assert len(splits) == 6
    assert evaluations == [("eval-1", 2, 0), ("eval-3", 2, 0)]
    assert steps == 2


def test_an_evaluation_on_problems_of_rows_says_so(project: Path) -> None:
    write_rows(project, book(HELDOUT))
    done = forge(
        "run", "x.toml", "--set", "problems.duplicates=allow",
        "--set", 'stage=[{ kind = "sft", steps = 2, learning_rate = 1e-3 }, { kind = "eval" }]',
        cwd=project,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "trained on 2 of 2 problems" in done.stdout + done.stderr
    shown = json.loads(forge("show", "full-1", "--json", cwd=project).stdout)
    assert [row["num_trained_problems"] for row in shown["evaluations"]] == [2]
    report = (project / "runs" / "full-1" / "report.html").read_text()
    assert "trained on 2 of 2 problems" in report
