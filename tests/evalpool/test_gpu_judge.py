"""The judge on a GPU: real kernels, real clocks, faults that end a context. Needs one."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from forge.records.verdict import JudgeOptions, Status, Verdict
from tests.corpus.corpus import load
from tests.evalpool import benches
from tests.evalpool.benches import RELU_KERNEL, candidate

pytestmark = pytest.mark.gpu

KERNEL = RELU_KERNEL.replace("256", "1024")
RELU = benches.RELU.replace("16, 64", "2048, 2048")
LAUNCH = "        kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)\n"


@pytest.fixture
def judge(gpu_bench: Any) -> Callable[..., Verdict]:
    return gpu_bench.judge


def test_an_honest_kernel_is_timed(judge: Callable[..., Verdict]) -> None:
    verdict = judge(KERNEL, problem=RELU, options=JudgeOptions(profile=True))
    assert (verdict.status, verdict.reason) == (Status.CORRECT, "ok"), verdict.detail
    assert verdict.num_launches == 1
    assert 0 < verdict.timing.speedup_low <= verdict.timing.speedup
    assert verdict.timing.achieved_gbps is not None
    assert [kernel.is_own for kernel in verdict.profile.kernels] == [True]
    assert len(verdict.profile.candidate_samples_us) >= 10


@pytest.mark.parametrize(
    ("old", "new", "status", "reason"),
    [
        ("* 2, mask", "* 3, mask", Status.WRONG, "mismatch"),
        ("tl.maximum", "tl.relu", Status.COMPILE_ERROR, "not_triton"),
        ("return y", "return torch.relu(x) * 2", Status.REJECTED, "torch_work"),
        (LAUNCH, "", Status.REJECTED, "no_kernel_launch"),
        ("x + i, mask=i < n", "x + i * 100000", Status.RUNTIME_ERROR, "gpu_fault"),
        ("return y", "return y.cpu()", Status.REJECTED, "unsupported"),
        ("BLOCK=1024)\n", "BLOCK=1024)\n        while True: pass\n", Status.TIMEOUT, "deadline"),
    ],
)
def test_what_is_wrong_is_told(
    judge: Callable[..., Verdict], old: str, new: str, status: Status, reason: str
) -> None:
    assert old in KERNEL
    verdict = judge(KERNEL.replace(old, new), problem=RELU)
    assert verdict.status is status, verdict
    assert verdict.reason.startswith(reason)
    assert judge(KERNEL, problem=RELU).status is Status.CORRECT


@pytest.mark.parametrize("name", ["softmax/mask_made_in_forward", "language/tensors_of_the_host"])
def test_code_that_makes_tensors_elsewhere_has_a_baseline(
    judge: Callable[..., Verdict], name: str
) -> None:
    """Without a device, on the host."""
    (pair,) = (one for one in load() if one.name == name)
    verdict = judge(pair.candidate, problem=pair.problem, options=JudgeOptions())
    assert verdict.status is Status.CORRECT, verdict.detail
    assert verdict.timing.baseline_us > 0


KEPT = KERNEL.replace(
    "def forward(self, x):\n",
    "def forward(self, x):\n        if hasattr(self, 'y'):\n            return self.y\n",
).replace("return y\n", "self.y = y\n        return y\n")
FINGERPRINT = KERNEL.replace(
    "def forward(self, x):\n",
    "def forward(self, x):\n"
    "        self.known = getattr(self, 'known', {})\n"
    "        key = x[0, 0].item()\n"
    "        if key in self.known:\n            return self.known[key]\n",
).replace("return y\n", "self.known[key] = y\n        return y\n")


def test_an_answer_that_is_kept_is_refused(judge: Callable[..., Verdict]) -> None:
    verdict = judge(KEPT, problem=RELU, options=JudgeOptions())
    assert verdict.status in (Status.REJECTED, Status.WRONG), verdict


def test_answers_kept_by_a_fingerprint_gain_nothing(judge: Callable[..., Verdict]) -> None:
    """Timed calls bring contents that were never seen: each is computed."""
    honest = judge(KERNEL, problem=RELU, options=JudgeOptions()).timing
    kept = judge(FINGERPRINT, problem=RELU, options=JudgeOptions())
    if kept.timing is not None:
        assert kept.timing.candidate_us > 0.9 * honest.candidate_us


def test_a_tf32_product_is_right_by_the_common_policy(judge: Callable[..., Verdict]) -> None:
    problem = """
import torch
class Model(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = torch.nn.Linear(n, n)
    def forward(self, x):
        return self.fc(x)
def get_inputs():
    return [torch.randn(256, 512)]
def get_init_inputs():
    return [512]
"""
    code = candidate("""
@triton.jit
def kernel(a, w, bias, c, M, N, K, B: tl.constexpr):
    m = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros((B, B), dtype=tl.float32)
    for start in range(0, K, B):
        k = start + tl.arange(0, B)
        total += tl.dot(tl.load(a + m[:, None] * K + k), tl.load(w + n[None, :] * K + k[:, None]))
    tl.store(c + m[:, None] * N + n[None, :], total + tl.load(bias + n)[None, :])

class ModelNew(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = torch.nn.Linear(n, n)
    def forward(self, x):
        w = self.fc.weight
        c = torch.empty((x.shape[0], w.shape[0]), device=x.device)
        grid = (x.shape[0] // 64, w.shape[0] // 64)
        kernel[grid](x, w, self.fc.bias, c, x.shape[0], w.shape[0], w.shape[1], B=64)
        return c
""")
    verdict = judge(code, problem=problem)
    assert verdict.status is Status.CORRECT, verdict.detail
    wrong = judge(code.replace("range(0, K, B)", "range(0, K - B, B)"), problem=problem)
    assert wrong.reason == "mismatch"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_a_problem_of_which_sets_take_a_third_of_the_card_is_judged(
    judge: Callable[..., Verdict],
) -> None:
    """Two sets of inputs and outputs, which oracle and judge hold at the same time."""
    elements = torch.cuda.get_device_properties(0).total_memory // 4 // 22
    large = RELU.replace("2048, 2048", f"1024, {elements // 1024}")
    code = KERNEL.replace("tl.program_id(0) *", "tl.program_id(0).to(tl.int64) *")
    verdict = judge(code, problem=large, options=JudgeOptions())
    assert (verdict.status, verdict.reason) == (Status.CORRECT, "ok"), verdict.detail
    assert verdict.timing is not None


def test_a_baseline_under_torch_compile_is_fused(gpu_bench: Any) -> None:
    """Eager runs a kernel and writes memory for each of four operations: so much that nobody waits
    for a launch."""
    chain = RELU.replace("torch.relu(x) * 2", "torch.tanh(torch.relu(x) * 2 + 1) * 0.5")
    chain = chain.replace("2048, 2048", "8192, 8192")
    code = KERNEL.replace(
        "tl.maximum(value, 0.0) * 2", "0.5 - 1 / (tl.exp(4 * tl.maximum(value, 0.0) + 2) + 1)"
    )
    verdict = gpu_bench.judge(code, problem=chain, options=JudgeOptions())
    eager = verdict.timing
    assert eager is not None, verdict
    table = gpu_bench.trials.table.model_copy(update={"baseline": "compile"})
    verdict = gpu_bench.judge(code, problem=chain, table=table, options=JudgeOptions())
    fused = verdict.timing
    assert fused is not None, verdict
    assert eager.baseline_us > 2 * fused.baseline_us
    assert eager.candidate_us == pytest.approx(fused.candidate_us, rel=0.2)


@pytest.mark.parametrize(
    "statement",
    [
        "socket.socket(socket.AF_INET)",
        "socket.socket(socket.AF_UNIX).connect('/tmp/x')",
        "open('/etc/passwd')",
        "open('/usr/bin/x', 'w')",
        "os.mknod('/tmp/disk', 0o600 | 0o060000, os.makedev(8, 0))",
    ],
)
def test_the_sandbox_holds_on_a_gpu_too(gpu_bench: Any, statement: str) -> None:
    gpu_bench.refused(statement)


def test_other_protocols_have_verdicts_beside_ours(gpu_bench: Any) -> None:
    table = gpu_bench.trials.table.model_copy(update={"also": ["kernelbench", "drkernel"]})
    clipped = KERNEL.replace("tl.maximum(value, 0.0)", "tl.clamp(value, 0.0, 8.0)")
    close = KERNEL.replace("* 2, mask", "* 2.006, mask")
    for code, reasons in (
        (KERNEL, ("ok", "ok", "ok")),
        (clipped, ("mismatch", "ok", "ok")),
        (close, ("mismatch", "mismatch", "ok")),
    ):
        verdict = gpu_bench.judge(code, problem=RELU, table=table)
        found = (verdict.reason, *(one.reason for one in verdict.also.values()))
        assert found == reasons, (verdict.detail, verdict.also)


@pytest.mark.parametrize("protocol", ["kernelbench", "drkernel"])
def test_a_part_left_to_torch_is_as_exact_as_the_reference_of_another_protocol(
    gpu_bench: Any, protocol: str
) -> None:
    """A product by torch's defaults, without TF32; a convolution with it, however far from
    float64."""
    table = gpu_bench.trials.table.model_copy(update={"protocol": protocol, "policy": "hybrid"})
    for part in ("Linear(512, 512)", "Conv2d(64, 64, 3)"):
        inputs = "256, 512" if "Linear" in part else "8, 64, 64, 64"
        made = (
            f"def __init__(self):\n        super().__init__()\n        self.part = torch.nn.{part}"
        )
        problem = benches.RELU.replace("16, 64", inputs).replace("relu(x)", "relu(self.part(x))")
        problem = problem.replace("    def forward", f"    {made}\n    def forward")
        code = KERNEL.replace("    def forward", f"    {made}\n    def forward")
        code = code.replace(
            "        y = torch.empty", "        x = self.part(x)\n        y = torch.empty"
        )
        verdict = gpu_bench.judge(code, problem=problem, table=table, options=JudgeOptions())
        assert verdict.status is Status.CORRECT, (part, verdict.detail)
        assert verdict.timing is not None


def test_candidates_that_fill_the_card_take_turns(judge: Callable[..., Verdict]) -> None:
    greedy = KERNEL.replace(
        "        y = torch.empty_like(x)\n",
        "        total = torch.cuda.get_device_properties(0).total_memory\n"
        "        much = torch.zeros(int(0.3 * total), dtype=torch.uint8, device=x.device)\n"
        "        y = torch.empty_like(x)\n        y[0, 0] = much[0]\n",
    )
    options = JudgeOptions(timing=False)
    with ThreadPoolExecutor(4) as several:
        verdicts = list(
            several.map(lambda _: judge(greedy, problem=RELU, options=options), range(4))
        )
    assert {one.status for one in verdicts} == {Status.CORRECT}, verdicts
    too_much = judge(greedy.replace("0.3", "1.2"), problem=RELU, options=options)
    assert (too_much.status, too_much.reason) == (Status.RUNTIME_ERROR, "out_of_memory")
