"""`forge doctor` on real GPUs: kernels, a sum by NCCL; claims are respected.

Run on a machine with one or two GPUs: `python -m pytest tests/commands/doctor -m gpu` (a minute).
"""

import time
from pathlib import Path

import anyio
import pytest

from forge.commands.doctor.examine import examine
from forge.commands.doctor.probe import Finding, Outcome, Severity, run_probe
from forge.process.devices import inventory, occupancies
from forge.process.gpu_locks import claim

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
RIGHT = "the result is right"
FREE_WITHIN_S = 20.0


def examined(folder: Path) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(folder)}


def need_two_gpus() -> None:
    if len(inventory()) < 2:
        pytest.skip("needs two GPUs")


def test_a_kernel_is_compiled_and_run_on_each_gpu_which_is_free_afterwards(tmp_path):
    found = examined(tmp_path)
    for gpu in inventory():
        kernel = found[f"kernel on GPU {gpu.index}"]
        assert kernel.severity is Severity.OK, kernel
        assert kernel.found.startswith("compiled and run in ")
        assert kernel.found.endswith(RIGHT)
    deadline = time.monotonic() + FREE_WITHIN_S
    while any(each.users for each in occupancies(inventory()).values()):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_two_gpus_add_up_correctly(tmp_path):
    need_two_gpus()
    found = examined(tmp_path)
    expected = f"gloo and NCCL add up correctly over {len(inventory())} GPUs"
    assert found["all-reduce"] == Finding(name="all-reduce", found=expected)


def test_a_gpu_that_a_run_holds_is_named_and_left_alone(tmp_path):
    first = inventory()[0]
    with claim([first], run="held-1"):
        found = examined(tmp_path)
    kernel = found[f"kernel on GPU {first.index}"]
    assert kernel.severity is Severity.OK
    assert kernel.found.startswith("in use by run held-1, pid ")
    assert kernel.found.endswith("not tried")
    if len(inventory()) == 2:
        assert "all-reduce" not in found
        assert found[f"kernel on GPU {inventory()[1].index}"].found.endswith(RIGHT)


def test_a_sum_whose_rank_dies_ends_within_its_deadline_with_the_rank_s_error(tmp_path):
    need_two_gpus()
    uuids = [gpu.uuid for gpu in inventory()[:2]]

    async def try_it() -> Outcome:
        return await run_probe(
            "allreduce", tmp_path, gpus=uuids[:1], config={"uuids": uuids, "timeout_s": 20.0},
        )  # fmt: skip

    outcome = anyio.run(try_it)  # the second rank sees no GPU
    assert "invalid device" in outcome.fault.lower() or "CUDA" in outcome.fault
