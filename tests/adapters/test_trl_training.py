"""TRL's GRPOTrainer, unchanged, trains against a served judge through both of its slots."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge.rollout.rewards.formulas import turn_returns
from tests.listening import ROOT, listening

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}",
    "OMP_NUM_THREADS": "2",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
RETURN_OF_RIGHT = turn_returns([0.8], gamma=0.4, max_turns=3)[0]
RETURN_OF_REPAIR = turn_returns([0.3, 0.8], gamma=0.4, max_turns=3)[0]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    argv = ("judge", "--serve", "--listen", "127.0.0.1:0", "--workers", "1", "--device", "cpu")
    with listening(*argv) as (at, _):
        yield at


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("slot", "column", "mean"),
    [
        ("reward", "rewards/kernel/mean", (0.8 + 0.3) / 2),
        ("turns", "rewards/KernelEnvironment/mean", (RETURN_OF_RIGHT + RETURN_OF_REPAIR) / 2),
    ],
)
def test_trl_trains_two_steps(url, slot, column, mean):
    child = Path(__file__).with_name("trl_child.py")
    ran = subprocess.run(
        [sys.executable, str(child), url, slot],
        capture_output=True, text=True, check=False, timeout=300, env=ENVIRONMENT,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.rpartition("RESULT ")[2])
    assert [step[column] for step in found["steps"]] == pytest.approx([mean, mean], abs=1e-4)
    assert all(step["grad_norm"] > 0 for step in found["steps"])
    assert found["moved"] > 1e-4
    if slot == "turns":
        assert all(step["tools/call_frequency"] == 1.5 for step in found["steps"])


@pytest.mark.parametrize("options", [(), ("--turns",)])
def test_the_example_trains_one_step(url, options):
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "trl_kernels.py"), url, *options],
        capture_output=True, text=True, check=False, timeout=300, env=ENVIRONMENT,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "'reward': " in ran.stdout
