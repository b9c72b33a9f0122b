"""The evidence behind a right answer: how much of it torch computed, whether it is right each time,
whether its weights are the reference's, and what host code asks for besides its arguments."""

import mmap
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from forge.config.schema import JudgeTable
from forge.evalpool.judge.channel.shm import LayoutError, TensorSpec
from forge.evalpool.judge.reference import oracle
from forge.evalpool.judge.trial.draws import parse_starts
from forge.evalpool.judge.trial.judgement import Judgement, Left, Results
from forge.evalpool.judge.trial.trial import Phases
from forge.records.verdict import Status
from tests.evalpool.benches import HEAD, RELU, RELU_KERNEL, candidate, problem

# --- torch's share ------------------------------------------------------------------------------

COPY = candidate("""
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, *inputs):
        x = {before}
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
""")
TWO = "torch.randn(32, 48), torch.randn(48, 32)"
TORCH_ANSWERS = {
    "relu": ("torch.relu(inputs[0])", "torch.randn(16, 64)", False),
    "mm": ("inputs[0] @ inputs[1]", TWO, False),
    "sdpa": (
        "torch.nn.functional.scaled_dot_product_attention(inputs[0], inputs[1], inputs[1])",
        "torch.randn(1, 2, 16, 8), torch.randn(1, 2, 16, 8)",
        False,
    ),
    "transpose": ("inputs[0].t().contiguous()", "torch.randn(16, 64)", True),
}


@pytest.mark.parametrize("name", TORCH_ANSWERS)
def test_torch_and_a_copy_kernel_is_rejected_unless_torch_may_compute(
    bench: Any, name: str
) -> None:
    forward, inputs, is_move = TORCH_ANSWERS[name]
    source, code = problem(f"return {forward}", inputs=inputs), COPY.format(before=forward)
    verdict = bench.judge(code, problem=source)
    assert (verdict.status, verdict.reason) == (Status.REJECTED, "torch_work"), verdict.detail
    assert "aten." in verdict.detail
    hybrid = bench.judge(code, problem=source, table=JudgeTable(policy="hybrid"))
    assert hybrid.status is Status.CORRECT, hybrid.detail
    assert hybrid.torch_share is not None
    assert (hybrid.torch_share == 0.0) if is_move else (hybrid.torch_share >= 0.5)


SUM_ROWS = candidate("""
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + tl.program_id(0), tl.sum(tl.load(x + i, mask=i < n, other=0.0), axis=0))

class ModelNew(torch.nn.Module):
    def forward(self, x):
        blocks = triton.cdiv(x.numel(), 16)
        y = torch.empty(blocks, device=x.device)
        kernel[(blocks,)](x, y, x.numel(), BLOCK=16)
        return y.sum() / x.numel()
""")


@pytest.mark.parametrize("rows", [2, 40])
def test_a_final_sum_of_partials_is_little_also_where_the_problem_is_tiny(
    bench: Any, rows: int
) -> None:
    source = problem("return inputs[0].mean()", inputs=f"torch.randn({rows}, 32)")
    verdict = bench.judge(SUM_ROWS, problem=source)
    assert verdict.status is Status.CORRECT, verdict.detail
    assert verdict.torch_share < 0.125


def test_the_share_is_stored_with_a_correct_verdict(bench: Any) -> None:
    assert bench.judge(RELU_KERNEL, problem=RELU).torch_share == 0.0


# --- the same answer each time ------------------------------------------------------------------


@pytest.mark.usefixtures("free_host_code")
def test_the_first_calls_are_not_the_judged_one(bench: Any) -> None:
    code = RELU_KERNEL.replace(
        "        return y\n",
        """        self.calls = getattr(self, "calls", 0) + 1
        return y if self.calls < {} else y[:, :1].repeat(1, 64)
""",
    )
    for most in "234":
        assert bench.judge(code.replace("{}", most), problem=RELU).reason == "mismatch"


def test_every_order_asks_each_set_and_one_twice() -> None:
    orders, calls = set(), list[int]()

    def call(number: int) -> Left:
        calls.append(number)
        return Left(number, (), is_kept=True, is_right=True)

    device: Any = SimpleNamespace(
        results=Results(content=cast("Any", None)), call=call, is_repeated=lambda: True,
        announce=lambda numbers: None, further=lambda judged: (),
    )  # fmt: skip
    for _ in range(60):
        calls.clear()
        programs: Any = SimpleNamespace(phases=Phases(), draw=None)
        Judgement(programs=programs, device=device)._run_checks(range(3))
        assert calls[0] == 0
        assert len(calls) == 4
        assert set(calls) == {0, 1, 2}
        orders.add(tuple(calls))
    assert len(orders) > 5


# --- windows ------------------------------------------------------------------------------------

ROW = """
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    value = tl.load(x + row * n + i, mask={mask}, other=float("{other}inf"))
    tl.store(y + row, tl.{reduce}(value, axis=0))

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=512)
        return y
"""


@pytest.mark.parametrize(
    ("reduce", "mask"), [("max", "i < n // 16 * 16"), ("min", "(i > 0) & (i < n)")]
)
def test_an_extremum_that_misses_an_end_is_wrong_in_every_draw(
    bench: Any, reduce: str, mask: str
) -> None:
    """Of 8 rows with 300 elements, one in 37 draws shows the last element by itself."""
    forward, code = f"return torch.a{reduce}(x, 1)", HEAD + ROW
    other = "-" if reduce == "max" else ""
    wrong = code.format(mask=mask, other=other, reduce=reduce)
    source = problem(forward, inputs="torch.randn(8, 300)")
    for draw in range(3):
        verdict = bench.judge(wrong, problem=f"{source}# {draw}\n")
        assert verdict.status is Status.WRONG, f"draw {draw}"
    right = code.format(mask="i < n", other=other, reduce=reduce)
    verdict = bench.judge(right, problem=source)
    assert verdict.status is Status.CORRECT, verdict.detail


# --- parameters ---------------------------------------------------------------------------------

SCALE = """
@triton.jit
def kernel(x, w, b, y, n, k, ROWS: tl.constexpr, K: tl.constexpr):
    i, j = tl.arange(0, ROWS), tl.arange(0, K)
    row = tl.program_id(0)
    value = tl.load(x + row * k + j, mask=j < k, other=0.0)
    weights = tl.load(
        w + j[None, :] * n + i[:, None], mask=(j[None, :] < k) & (i[:, None] < n), other=0.0
    )
    out = tl.sum(weights * value[None, :], axis=1) + tl.load(b + i, mask=i < n, other=0.0)
    tl.store(y + row * n + i, out, mask=i < n)

class ModelNew(torch.nn.Module):
    def __init__(self, k, n):
        super().__init__()
{init}
    def forward(self, x):
        k, n = self.packed.shape
        y = torch.empty(x.shape[0], n, device=x.device)
        kernel[(x.shape[0],)](x, self.packed, self.shift, y, n, k, ROWS=16, K=32)
        return y
"""
LINEAR = "self.fc = torch.nn.Linear(k, n)"
NORM = """
        self.bn = torch.nn.BatchNorm1d(n)
        self.bn.eval()"""
PACKS = {
    "linear": (
        LINEAR,
        "return self.fc(inputs[0])",
        LINEAR,
        "self.fc.weight.detach().t().contiguous()",
        "self.fc.bias.detach()",
    ),
    "a layer that is dropped": (
        LINEAR,
        "return self.fc(inputs[0])",
        "fc = torch.nn.Linear(k, n)",
        "fc.weight.detach().t().contiguous()",
        "fc.bias.detach().clone()",
    ),
    "parameters": (
        """self.w = torch.nn.Parameter(torch.randn(n, k))
        self.b = torch.nn.Parameter(torch.zeros(n))""",
        "return inputs[0] @ self.w.t() + self.b",
        """w = torch.nn.Parameter(torch.empty(n, k))
        torch.nn.init.xavier_uniform_(w)
        b = torch.nn.Parameter(torch.empty(n))
        b.data.zero_()""",
        "w.detach().t().contiguous()",
        "b.detach()",
    ),
    "a folded norm": (
        LINEAR + NORM,
        "return self.bn(self.fc(inputs[0]))",
        LINEAR + NORM + "\n        s = self.bn.weight / torch.sqrt(self.bn.running_var + 1e-5)",
        "(self.fc.weight * s[:, None]).detach().t().contiguous()",
        "((self.fc.bias - self.bn.running_mean) * s + self.bn.bias).detach()",
    ),
    "a convolution": (
        "self.conv = torch.nn.Conv1d(k, n, 1)",
        "return self.conv(inputs[0][:, :, None])[:, :, 0]",
        "self.conv = torch.nn.Conv1d(k, n, 1)",
        "self.conv.weight.detach()[:, :, 0].t().contiguous()",
        "self.conv.bias.detach()",
    ),
}


@pytest.mark.parametrize(
    ("kind", "how"),
    [*((kind, "self.{} = {}") for kind in PACKS), ("linear", "self.register_buffer('{}', {})")],
)
def test_weights_packed_in_init_are_the_reference_s(bench: Any, kind: str, how: str) -> None:
    made, forward, own, packed, shift = PACKS[kind]
    source = problem(
        forward, head=f"k, n = args\n        {made}", inputs="torch.randn(6, 20)", init="[20, 12]"
    )
    lines = [own, how.format("packed", packed), how.format("shift", shift)]
    code = HEAD + SCALE.replace("{init}", "".join(f"        {line}\n" for line in lines))
    verdict = bench.judge(code, problem=source)
    assert verdict.status is Status.CORRECT, verdict.detail
    assert shift in code
    assert bench.judge(code.replace(shift, f"{shift} + 0.01"), problem=source).reason == "mismatch"


def test_another_order_of_equal_shapes_is_loaded_by_name(bench: Any) -> None:
    """Constructed with the other's values at first, then once more without any."""
    source = problem(
        "return self.b(self.a(inputs[0]))",
        head="self.a = torch.nn.Linear(16, 16); self.b = torch.nn.Linear(16, 16)",
        inputs="torch.randn(4, 16)",
    )
    code = HEAD + SCALE.replace("def __init__(self, k, n)", "def __init__(self)").replace(
        "{init}",
        "        self.b = torch.nn.Linear(16, 16)\n        self.a = torch.nn.Linear(16, 16)\n",
    )
    code = code.replace("k, n = self.packed.shape", "k = n = 16").replace(
        "        return y\n",
        """        z = torch.empty_like(y)
        w = self.b.weight.t().contiguous()
        kernel[(x.shape[0],)](y, w, self.b.bias, z, n, k, ROWS=16, K=32)
        return z
""",
    )
    weights = "self.a.weight.t().contiguous(), self.a.bias"
    code = code.replace("self.packed, self.shift", weights)
    verdict = bench.judge(code, problem=source)
    assert verdict.status is Status.CORRECT, verdict.detail


def test_running_statistics_are_no_constants(bench: Any) -> None:
    source = problem(
        "return torch.relu(self.bn(inputs[0]))",
        head="self.bn = torch.nn.BatchNorm1d(64, affine=False).eval()",
        inputs="torch.randn(16, 64)",
    )
    code = RELU_KERNEL.replace("* 2", "")
    assert bench.judge(code, problem=source).reason == "mismatch"
    assert bench.judge(RELU_KERNEL, problem=RELU).status is Status.CORRECT


ROOM = 1 << 20
SPECS = [TensorSpec("float32", (16,)), TensorSpec("uint8", (3,))]


def test_each_tensor_of_a_draw_is_where_the_layout_says() -> None:
    fd = os.memfd_create("forge")
    os.ftruncate(fd, ROOM)
    with mmap.mmap(fd, ROOM) as memory:
        made = [torch.randn(5000), torch.tensor(3.5), torch.rand(4) < 0.5, torch.empty(0)]
        made += [torch.randn(600).to(torch.bfloat16), made[0]]
        starts = oracle.written(os.dup(fd), made)
        for tensor, start in zip(made, starts, strict=True):
            held = bytes(memory[start : start + tensor.nbytes])
            assert held == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    sizes = [TensorSpec("uint8", (one.nbytes,)) for one in made]
    assert starts == parse_starts(starts, sizes, max_bytes=ROOM)
    with pytest.raises(MemoryError, match="more than 1048576 bytes"):
        oracle.written(fd, [torch.zeros(8), torch.zeros(ROOM // 4)])
    os.close(fd)


@pytest.mark.parametrize(
    "data", [None, [0], [0, 0, 0], [0, "64"], [0, True], [0, 63], [-64, 0], [1 << 20, 0], [960, 0]]
)
def test_a_place_outside_of_the_memory_is_refused(data: Any) -> None:
    with pytest.raises(LayoutError):
        parse_starts(data, SPECS, max_bytes=1000)
    assert parse_starts([64, 896], SPECS, max_bytes=1000) == [64, 896]


TRAINED = RELU.replace("def forward(self, x):\n", "def forward(self, x):\n        self.training\n")
CODE = candidate("""
@triton.jit
def kernel(x, y, n, HIGH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.minimum(tl.maximum(v * 2, 0.0), HIGH), mask=i < n)

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = torch.nn.Identity()
        self.count = torch.zeros((), device="cpu")

    def forward(self, x):
        y, block, high = torch.empty_like(x), 256, 1e38
        LOOK
        kernel[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), HIGH=high, BLOCK=block)
        return y
""")


@pytest.mark.parametrize(
    ("look", "problem", "reason", "words"),
    [
        ("if x.requires_grad: block = 512", RELU, "ok", ""),
        ("if x.requires_grad: raise ValueError('no gradient')", RELU, "ok", ""),
        ("if x.requires_grad: high = 3.0", RELU, "mismatch", "that require gradients forward"),
        ("if not self.training: high = 3.0", RELU, "mismatch", "after eval() forward"),
        ("if not self.training: block = 512", RELU, "ok", ""),
        ("if not self.training: high = 3.0", TRAINED, "ok", ""),
        ("if not self.part.training: high = 3.0", RELU, "unsupported", "names training of a part"),
        ("if 'grad' in f'{x}': high = 3.0", RELU, "unsupported", "a text that is made"),
        ("if x.device.index: return x", RELU, "unsupported", "decides by x.device"),
        ("if x._base is None: high = 3.0", RELU, "unsupported", "names x._base"),
        ("self.count += 1; high = 3.0 if self.count > 9 else high", RELU, "unsupported", ""),
        ("self.count.add_(1); high = 3.0 if self.count > 9 else high", RELU, "unsupported", "host"),
    ],
)
def test_what_forward_asks_for_is_judged_or_refused(
    bench: Any, look: str, problem: str, reason: str, words: str
) -> None:
    verdict = bench.judge(CODE.replace("LOOK", look), problem=problem)
    assert verdict.reason == reason, verdict.detail
    assert (verdict.status is Status.CORRECT) == (reason == "ok")
    assert words in verdict.detail
