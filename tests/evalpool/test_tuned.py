"""Autotuned kernels: each configuration alone is right, and so is the first call on a card; tiles
that no card has memory for."""

from typing import Any

import pytest

from forge.evalpool.judge.compiler.text import may_exceed
from forge.evalpool.judge.program.format import Kernel, Options
from forge.records.verdict import Status
from tests.evalpool.benches import candidate, problem

pytestmark = pytest.mark.usefixtures("free_host_code")

SUM = problem("return x.sum().reshape(1)", inputs="torch.randn(300)")
PARTS = candidate("""
tried = [(64, 4), (64, 8), (256, 4)]

@triton.autotune([triton.Config({"B": b}, num_warps=w) for b, w in tried], key=["n"])
@triton.jit
def k(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + tl.program_id(0), tl.sum(tl.load(x + i, mask=i < n, other=0.0)))

@triton.jit
def total(y, z, m, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(z, tl.sum(tl.load(y + i, mask=i < m, other=0.0)))

class ModelNew(torch.nn.Module):
    best = None
    def forward(self, x):
        n = x.numel()
        y, z = torch.empty(triton.cdiv(n, 64), device=x.device), torch.empty(1, device=x.device)
        seen = {}
        def grid(meta):
            seen.update(meta)
            return (triton.cdiv(n, meta["B"]),)
        LAUNCH
        total[(1,)](y, z, SIZE, B=64)
        return z
""")
REMEMBERED = """if self.best is None:
            k[grid](x, y, n)
            self.best = k.best_config
        k.fn[grid](x, y, n, **self.best.all_kwargs())"""

KEPT = """k[grid](x, y, n)
        self.best = self.best or k.best_config"""


@pytest.mark.parametrize(
    ("launch", "size", "status"),
    [
        ("k[grid](x, y, n)", 'triton.cdiv(n, k.best_config.kwargs["B"])', Status.CORRECT),
        ("k[grid](x, y, n)", 'triton.cdiv(n, seen["B"])', Status.CORRECT),
        (REMEMBERED, 'triton.cdiv(n, self.best.kwargs["B"])', Status.CORRECT),
        (KEPT, 'triton.cdiv(n, self.best.kwargs["B"])', Status.CORRECT),
        ("k[grid](x, y, n)", "triton.cdiv(n, 64)", Status.WRONG),
        (KEPT, '1 if self.best.kwargs["B"] > 64 else 5', Status.WRONG),
    ],
    ids=["best_config", "grid", "remembered", "kept", "one_size_for_all", "kept_and_wrong"],
)
def test_a_configuration_is_judged_with_the_host_values_that_it_brings(
    bench: Any, launch: str, size: str, status: Status
) -> None:
    code = PARTS.replace("LAUNCH", launch).replace("SIZE", size)
    verdict = bench.judge(code, problem=SUM)
    assert verdict.status is status, verdict.detail


ATOMIC = candidate("""
def zero(args, **_):
    args["y"].zero_()

@triton.jit
def clear(y):
    tl.store(y, 0.0)

def zero_by_kernel(args, **_):
    clear[(1,)](args["y"])

@triton.autotune([triton.Config({"B": b}HOOK) for b in (32, 128)], key=["n"]MORE)
@triton.jit
def k(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(y, tl.sum(tl.load(x + i, mask=i < n, other=0.0)))

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = x.new_zeros(1)
        k[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](x, y, x.numel())
        return y
""")


@pytest.mark.parametrize(
    ("hook", "more", "says"),
    [
        ("", "", "reset_to_zero=['y']"),
        ("", ", reset_to_zero=['x']", "reset_to_zero=['y']"),
        ("", ", reset_to_zero=['y']", ""),
        ("", ", restore_value=['y']", ""),
        ("", ", pre_hook=zero", ""),
        ("", ", pre_hook=zero_by_kernel", ""),
        (", pre_hook=zero", "", ""),
    ],
    ids=[
        "none",
        "another",
        "reset",
        "restored",
        "hook",
        "hook_by_kernel",
        "hook_of_a_configuration",
    ],
)
def test_what_benchmarks_leave_in_an_output_makes_the_first_call_wrong(
    bench: Any, hook: str, more: str, says: str
) -> None:
    verdict = bench.judge(ATOMIC.replace("HOOK", hook).replace("MORE", more), problem=SUM)
    assert verdict.status is (Status.WRONG if says else Status.CORRECT), verdict.detail
    assert says in verdict.detail


BENCHED = candidate("""
@triton.jit
def k(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(y, tl.sum(tl.load(x + i, mask=i < n, other=0.0)))

class ModelNew(torch.nn.Module):
    best = None
    def forward(self, x):
        y, n = x.new_zeros(1), x.numel()
        run = lambda b: k[(triton.cdiv(n, b),)](x, y, n, B=b)
        if self.best is None:
            TIMES
            self.best = min(times, key=times.get)
        run(self.best)
        return y
""")


@pytest.mark.parametrize(
    ("times", "is_right"),
    [
        ("times = {b: (run(b), b)[1] for b in (32, 128)}", False),
        ("times = {b: (run(b), b)[1] for b in (32, 128)}; y.zero_()", True),
    ],
    ids=["loop", "loop_and_zero"],
)
def test_a_host_that_tries_configurations_on_its_output_is_wrong_in_its_first_call(
    bench: Any, times: str, is_right: bool
) -> None:
    verdict = bench.judge(BENCHED.replace("TIMES", times), problem=SUM)
    if is_right:
        assert verdict.status is Status.CORRECT, verdict.detail
    else:
        assert (verdict.reason, verdict.status) == ("stateful", Status.WRONG)
        assert "wrong in its first call" in verdict.detail


SQUARE = "torch.randn(128, 128)"
PRODUCT = problem("return x @ inputs[1]", inputs=f"{SQUARE}, {SQUARE}")
TILES = candidate("""
@triton.autotune([triton.Config({}, num_warps=8, num_stages=s) for s in STAGES], key=["K"])
@triton.jit
def product(a, b, c, K, B: tl.constexpr):
    m, n, k = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :], tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for s in range(0, K, B):
        x = tl.load(a + m * K + (s + k)[None, :])
        y = tl.load(b + (s + k)[:, None] * B + n)
        acc += tl.dot(x, y, input_precision="ieee")
    tl.store(c + m * B + n, acc)

class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        c = torch.empty_like(a)
        product[(1,)](a, b, c, a.shape[1], 128)
        return c
""")


@pytest.mark.parametrize(("stages", "fits"), [([4], False), ([2], True), ([4, 2], True)])
def test_tiles_beyond_a_cards_shared_memory_are_out_of_resources_without_a_card(
    bench: Any, stages: list[int], fits: bool
) -> None:
    """An autotuner leaves such a configuration out."""
    verdict = bench.judge(TILES.replace("STAGES", str(stages)), problem=PRODUCT)
    if fits:
        assert verdict.status is Status.CORRECT, verdict.detail
    else:
        assert verdict.reason == "out_of_resources"
        assert "Required: 393216, Hardware limit: 232448" in verdict.detail


def test_a_long_block_of_which_elements_are_gathered_may_exceed_shared_memory() -> None:
    def gather(num: int) -> Kernel:
        values, places = f"tensor<{num}xf32>", f"tensor<{num}xi32>"
        line = f"%g = tt.gather %v[%i] {{axis = 0 : i32}} : ({values}, {places}) -> {values}"
        return Kernel(name="k", ttir=line, options=Options(), parameters=())

    assert may_exceed(gather(65536), 227 << 10)
    assert not may_exceed(gather(16384), 227 << 10)
