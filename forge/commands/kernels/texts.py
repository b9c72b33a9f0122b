"""Texts that exported kernels come with: a test, and a note about licences."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.commands.kernels.best import BestKernel, Origin

TOLERANCES = {"fp32": 1e-2, "fp16": 2e-2, "bf16": 2e-2}
"""rtol and atol of an exported test. The judge's own bounds are stricter and by row; a tensor core
may round fp32 products to TF32."""

COMPARE = '''\
def load(name, path):
    """A module from a file, which Triton can read again."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def inputs_of(problem):
    """Arguments of forward: those of get_inputs(), or the first set of get_input_sets()."""
    if not hasattr(problem, "get_input_sets"):
        return problem.get_inputs()
    first = problem.get_input_sets()[0]
    if isinstance(first, dict):
        return problem.get_inputs(**first)
    return first() if callable(first) else first


def moved(value):
    """A tensor, or a list or tuple of them, on the GPU."""
    if isinstance(value, torch.Tensor):
        return value.cuda()
    return type(value)(map(moved, value)) if isinstance(value, (list, tuple)) else value


def compare(problem, kernel, entry_point, tolerance):
    """Run both with the same parameters and inputs, and compare their outputs."""
    made = []
    for module, name in ((problem, entry_point), (kernel, entry_point + "New")):
        torch.manual_seed(0)
        found = getattr(module, name)
        if isinstance(found, type):
            found = found(*problem.get_init_inputs()).cuda().eval()
        made.append(found)
    reference, ours = made
    if isinstance(ours, torch.nn.Module) and isinstance(reference, torch.nn.Module):
        ours.load_state_dict(reference.state_dict(), strict=False)
    torch.manual_seed(1)
    inputs = [moved(each) for each in inputs_of(problem)]
    with torch.no_grad():
        expected = reference(*[copy.deepcopy(each) for each in inputs])
        found = ours(*[copy.deepcopy(each) for each in inputs])
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
'''

TEST = '''\
"""The kernel against its problem: `pytest {file}` or `python {file}`.

On a GPU both run and their outputs are compared. Without one, forge judges the kernel if it is
installed. This is a check that the file works here; the verdict on it is in verdict.json.
"""

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent


{compare}

def judge():
    """forge's verdict on the kernel, on the CPU."""
    if importlib.util.find_spec("forge") is None:
        pytest.skip("needs a GPU, or forge to judge without one")
    files = [str(HERE / "problem.py"), str(HERE / "kernel.py")]
    options = ["--device", "cpu", "--precision", "{precision}", "--json"]
    command = [sys.executable, "-m", "forge", "judge", *files, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_{name}():
    if torch.cuda.is_available():
        problem, kernel = (load(name, HERE / f"{{name}}.py") for name in ("problem", "kernel"))
        compare(problem, kernel, "{entry_point}", {tolerance})
    else:
        verdict = judge()
        assert verdict["status"] == "correct", verdict


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))
'''


def test_of(kernel: BestKernel, *, file: str) -> str:
    """Test of a kernel beside `problem.py` and `kernel.py`."""
    return TEST.format(
        file=file,
        compare=COMPARE,
        name=kernel.name,
        precision=kernel.precision,
        entry_point=kernel.entry_point,
        tolerance=TOLERANCES.get(kernel.precision, 1e-2),
    )


def notice(origin: Origin) -> str:
    """Note about the licences of exported kernels."""
    chosen = (
        "No licence was chosen for them (`--license`): decide before you publish."
        if origin.license == "other"
        else f"They were exported with `--license {origin.license}`."
    )
    return (
        "# Notice\n\n"
        f"These kernels were written by a language model ({origin.model}) in the forge run "
        f"{origin.run} and judged by forge {origin.commit[:8]}. {chosen}\n\n"
        "What may apply to them: the terms of the model and of the data that it was trained on, "
        f"and the licence of the problems, which come from {origin.problems}. The problems are "
        "copies; KernelBench is under the MIT licence. forge claims no rights to the kernels and "
        "gives no warranty.\n"
    )


def speed_of(kernel: BestKernel) -> str:
    """`2.41x (at least 2.30x), 12.3 us against 29.7 us on cuda`; `not timed` on a CPU."""
    row = kernel.verdict
    if row.get("speedup") is None:
        return "not timed"
    return (
        f"{row['speedup']:.2f}x (at least {row['speedup_low']:.2f}x), {row['candidate_us']:.1f} us "
        f"against {row['baseline_us']:.1f} us on {row['device']}"
    )
