"""Answers that Inductor made become plain modules, or are refused with a reason."""

from __future__ import annotations

import ast
import contextlib
import importlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.data.inductor import NotRewritten, RewriteReason, rewrite
from forge.data.inductor.launches import choose_blocks
from forge.data.inductor.source import Heuristic, Transformer, copied, walk
from forge.data.inductor.text import WIDTH
from tests.corpus.corpus import Pair
from tests.corpus.running import run

FOLDER = Path(__file__).with_name("inductor")
ROWS = {
    path.name.removesuffix(".before.txt"): path.read_text() for path in FOLDER.glob("*.before.txt")
}
ENTRIES = {
    "linear_relu_for_training": "Dense",
    "norm_of_all_elements": "Norm",
    "swap_axes_in_two_dimensions": "Swap",
    "convolution_and_indices": "Conv",
}
"""Entry points that are not `Model`."""
HYBRID = {"linear_relu_for_training", "convolution_and_indices"}
PLAIN = ROWS["norm_of_all_elements"]
LAUNCH = """triton_per_fused_mul_sqrt_sum_0[grid(1)](buf1, arg0_1, 1, 256,
            num_warps=2, num_stages=1)"""


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_row_is_rewritten_as_in_its_file(name: str):
    """The rows without a file have a problem, by which they are run."""
    made = rewrite(ROWS[name], entry_point=ENTRIES.get(name, "Model"))
    assert made.policy == ("hybrid" if name in HYBRID else "own")
    if name not in PROBLEMS:
        assert made.code == (FOLDER / f"{name}.after.txt").read_text()


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_module_needs_nothing_of_inductor_and_fits_its_width(name: str):
    code = rewrite(ROWS[name]).code
    assert not any(word in code for word in ("_inductor", "torch._C", "async_compile", '"""'))
    assert max(map(len, code.splitlines())) <= WIDTH
    assert "class ModelNew(" in code


PROBLEM = """
import torch


class Model(torch.nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        {init}

    def forward(self, x):
        return {result}


def get_inputs():
    return [torch.randn({shape})]


def get_init_inputs():
    return [{size}]
"""
PROBLEMS = {
    "linear_relu_for_training": PROBLEM.format(
        init="self.fc = torch.nn.Linear(*sizes, *sizes)", result="torch.relu(self.fc(x))",
        shape="4, 4, 4, 4", size="4",
    ),
    "norm_of_all_elements": PROBLEM.format(
        init="pass", result="torch.linalg.vector_norm(x)", shape="4, 4, 4, 4", size=""
    ),
    "swap_axes_in_two_dimensions": PROBLEM.format(
        init="pass", result="x[1:].abs().permute(1, 0, 2)", shape="5, 4, 4", size=""
    ),
    "variance_in_a_loop": PROBLEM.format(
        init="pass", result="torch.var(x, 1)", shape="64, 5000", size=""
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_a_module_computes_what_its_problem_does(name: str, tmp_path: Path):
    made = rewrite(ROWS[name])
    pair = Pair(name=name, subject="", problem=PROBLEMS[name], candidate=made.code)
    found = run(pair, tmp_path)
    assert found.errors == []
    assert found.faults == []
    if made.policy == "own":
        assert found.refusals == []


def replaced(old: str, new: str) -> str:
    assert old in PLAIN
    return PLAIN.replace(old, new)


REFUSED = {
    "class (": RewriteReason.NOT_PYTHON,
    "x = 1": RewriteReason.NO_ENTRY_POINT,
    replaced("output = call([arg0_1])", "output = [arg0_1]"): RewriteReason.NO_ENTRY_POINT,
    replaced(LAUNCH, "pass"): RewriteReason.NO_KERNEL,
    replaced(", num_stages=1)", ", num_stages=1, RBLOCK=0)"): RewriteReason.UNKNOWN_HEURISTIC,
    replaced("grid(1)", "cooperative_reduction_grid(1)"): RewriteReason.UNKNOWN_HEURISTIC,
    replaced("libdevice.sqrt", "triton_helpers.sort_with_index"): RewriteReason.UNKNOWN_HELPER,
    replaced("libdevice.sqrt(tmp4)", "tl.rand(0, tmp4)"): RewriteReason.RANDOM,
    replaced(LAUNCH, "arg0_1.frobnicate()"): RewriteReason.UNKNOWN_STATEMENT,
    replaced(LAUNCH, "extern_kernels.svd(arg0_1, out=buf1)"): RewriteReason.UNKNOWN_OPERATION,
    replaced("buf1, arg0_1, 1,", "buf1, _constant0, 1,"): RewriteReason.UNKNOWN_NAME,
    replaced("del buf0", "torch.ops.aten.bernoulli(buf0, out=buf0)"): RewriteReason.RANDOM,
}  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), REFUSED.items(), ids=map(str, REFUSED.values()))
def test_a_row_is_refused_with_a_reason(text: str, reason: RewriteReason):
    with pytest.raises(NotRewritten) as refused:
        rewrite(text)
    assert refused.value.reason is reason


def test_a_store_to_an_input_is_kept():
    row = ROWS["linear_relu_for_training"].replace(
        "primals_2, buf2, 256", "primals_2, primals_3, 256"
    )
    assert "tl.store(out_ptr0" in rewrite(row).code


def test_constants_in_use_are_kept_together():
    init = "    def __init__(self, size):\n        self.rest = EPS, id, size\n"
    row = PLAIN.replace(
        "class NormNew(nn.Module):\n",
        f"size = 3\nEPS = 1\nid = 2\n\nclass NormNew(nn.Module):\n{init}",
    )
    code = rewrite(row, entry_point="Norm").code
    assert "\nEPS = 1\nid = 2\n\n\n" in code
    assert "size = 3" not in code


def test_many_programs_along_y_go_to_z():
    row = ROWS["swap_axes_in_two_dimensions"].replace("grid(16, 4)", "grid(1100000, 4)")
    assert "clone_kernel[(1, 34375, 2)](" in rewrite(row).code


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A row with some of its characters or lines replaced, or cut out."""
    text = draw(st.sampled_from(sorted(ROWS.values())))
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.integers(0, 60)))
        words = (
            *("", "(", "0", "None", "buf0", "-1", "*"),
            *("x[0]", "lambda: 0", "'a'", "1e9", "tl.full"),
        )
        text = text[:begin] + draw(st.sampled_from(words)) + text[end:]
    return text


def swapped_names() -> st.SearchStrategy[str]:
    """A row in which one word stands for another: mostly valid Python."""
    words = (
        *("buf0", "buf1", "arg0_1", "primals_1", "256", "1"),
        *("tl.constexpr", "grid", "XBLOCK", "call"),
    )
    pairs = st.tuples(
        st.sampled_from(words), st.sampled_from((*words, "None", "[]", "-3", "'s'", "()"))
    )
    return st.builds(
        lambda text, pair: text.replace(*pair), st.sampled_from(sorted(ROWS.values())), pairs
    )


@given(text=st.one_of(damaged(), swapped_names(), st.text()))
def test_any_text_is_rewritten_or_refused(text: str):
    with contextlib.suppress(NotRewritten):
        first = rewrite(text)
        assert rewrite(text) == first
        compile(first.code, "answer", "exec")


def test_deeply_nested_text_is_refused():
    deep = replaced("tmp0 * tmp0", "(" * 80 + "tmp0" + ")" * 80 + " + tmp0" * 5000)
    with pytest.raises(NotRewritten):
        rewrite(deep)


@pytest.mark.long
def test_block_sizes_are_those_of_inductor(monkeypatch: pytest.MonkeyPatch):
    from torch._inductor.runtime.hints import DeviceProperties, ReductionHint

    heuristics: Any = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    card = DeviceProperties(
        type="cuda", index=0, multi_processor_count=132, cc=90, major=9, warp_size=32
    )
    meta: dict[str, Any] = {"signature": {}, "device": card, "constants": {}}
    for x, other in [
        (x, r) for x in (1, 64, 1024, 1 << 16, 1 << 22) for r in (16, 512, 1024, 4096)
    ]:
        pointwise: dict[str, int] = {"y": other, "x": x}
        (first, *_) = heuristics.pointwise(pointwise, meta, inductor_meta={}, return_configs=True)
        assert ours("pointwise", pointwise, "DEFAULT", 1) == (first.kwargs, first.num_warps)
        for kind in ("reduction", "persistent_reduction"):
            for hint in ("INNER", "OUTER", "OUTER_TINY", "DEFAULT"):
                for num_loads in (1, 12):
                    axes = {"x": x, "r0_": other}
                    configs = getattr(heuristics, kind)(
                        axes, ReductionHint[hint], meta,
                        inductor_meta={"num_load": num_loads, "num_reduction": 1},
                        return_configs=True,
                    )  # fmt: skip
                    options = [(one.kwargs, one.num_warps) for one in configs]
                    is_timed = kind == "persistent_reduction" and hint in ("INNER", "DEFAULT")
                    allowed = options if is_timed else options[:1]
                    assert ours(kind, axes, hint, num_loads) in allowed


def ours(kind: str, axes: dict[str, int], hint: str, num_loads: int) -> tuple[dict[str, int], int]:
    made = choose_blocks(
        Heuristic(
            kind=kind, size_hints=axes, reduction_hint=hint, grid="",
            num_loads=num_loads, num_reductions=1, constants={}, num_warps=4,
        )
    )  # fmt: skip
    return made.sizes, made.num_warps


SYNTAX = """
@d(1)
class A(B, k=2):
    def f(self, a, *b, c=1, d, **e) -> int:
        global g
        x: int = {**a, 'k': [y for y in b if y], 1: (z := 3)}
        with open(a) as h, i:
            del h[1:2, ::3], i.j
        try:
            return f"{a!r:>{b}}" if not c else lambda p, *, q=1, r: -p @ q
        except (E, F) as e:
            raise G from e
        else:
            assert a < b <= c, d
        finally:
            match a:
                case [1, *s] | {"k": v, **w} | T(u, t=None) if a:
                    yield from a
    async def n(self):
        async for o in p: await o
"""


def test_walking_and_copying_leave_out_contexts_and_operators_only() -> None:
    tree = ast.parse(SYNTAX)
    skipped = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
    expected = {one for one in ast.walk(tree) if not isinstance(one, skipped)}
    found = list(walk(tree))
    assert len(found) == len(expected)
    assert set(found) == expected
    assert ast.unparse(copied(tree)) == ast.unparse(tree)
    assert not set(walk(copied(tree))) & expected


def test_a_transformer_removes_replaces_and_keeps() -> None:
    class Changed(Transformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return ast.Constant(7) if node.id == "a" else node

        def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
            return None if ast.unparse(node.targets[0]) == "gone" else self.generic_visit(node)

    tree = ast.parse("gone = a\nif a:\n    b = {**a, a: [a, c]}\n    gone = 1\n")
    assert ast.unparse(Changed().visit(tree)) == "if 7:\n    b = {**7, 7: [7, c]}"
