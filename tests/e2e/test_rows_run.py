"""SFT on a user's rows through the command line: from a KernelBook-like file to weights."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(200)]

EXPERIMENT = """\
name = "rows"
[model]
init = "tiny"
[model.tiny]
hidden_size = 64
num_layers = 2
num_heads = 2
num_kv_heads = 1
intermediate_size = 128
vocab_size = 400
[data]
source = "file"
path = "rows.jsonl"
format = "kernelbook"
[[stage]]
kind = "sft"
epochs = 2
batch_size = 8
max_length = 512
learning_rate = 1e-3
"""


def row(number: int, **changes: str) -> dict[str, str | int]:
    return {
        "entry_point": f"Add{number}",
        "uuid": number,
        "python_code": f"class Add{number}:\n    def forward(self, x):\n        return x+{number}",
        "triton_code": f"import triton\n\nclass Add{number}New:\n    offset = {number}",
        **changes,
    }


def test_two_epochs_over_a_file_give_weights_and_report_dropped_rows(tmp_path: Path) -> None:
    rows = [*map(row, range(24)), row(24, triton_code="no class")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (tmp_path / "x.toml").write_text(EXPERIMENT)
    done = subprocess.run(
        [sys.executable, "-m", "forge", "run", "x.toml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    run = tmp_path / "runs" / "rows-1"
    pairs = [json.loads(line) for line in (run / "data" / "pairs.jsonl").read_text().splitlines()]
    assert [pair["problem_id"] for pair in pairs] == [f"kernelbook/{n}" for n in range(24)]
    assert (run / "weights" / "sft-000006").is_dir(), "24 rows by 8, twice"
    log = next(run.glob("logs/attempt-1/supervisor.log")).read_text()
    assert "left out 1 without the class that a judge calls" in log
