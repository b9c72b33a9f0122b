"""What Inductor would compile becomes plain modules, or is refused with a reason."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from forge.data.inductor.outcome import NotRewritten, RewriteReason, Rewritten
from forge.data.inductor.rewrite import rewrite
from forge.data.inductor.source import Entry, Transformer, copied, walk
from forge.data.inductor.text import WIDTH, print_statement

FOLDER = Path(__file__).with_name("inductor")
TRACED: dict[str, dict[str, Any]] = {
    path.name.removesuffix(".before.json"): json.loads(path.read_text())
    for path in sorted(FOLDER.glob("*.before.json"))
}
"""Problems as `forge.data.inductor.compiler.graph.trace` gives them."""
PLAIN = TRACED["softmax_of_a_row"]["code"]


def rewritten(name: str, code: str | None = None) -> Rewritten:
    traced = TRACED[name]
    entry = Entry(
        definitions=ast.parse(traced["definitions"]).body,
        given=[ast.parse(one, mode="eval").body for one in traced["given"]],
        result=_with_places(ast.parse(traced["result"], mode="eval").body),
    )
    return rewrite(code or traced["code"], entry, traced["names"])


def _with_places(node: ast.expr) -> ast.expr:
    """Names of returned values, which are numbers, as `trace` gives them."""

    class Placed(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.expr:
            return ast.Name(id=str(node.value), ctx=ast.Load())

    return Placed().visit(node)


@pytest.mark.parametrize("name", TRACED)
def test_a_problem_is_rewritten_as_in_its_file(name: str):
    made = rewritten(name)
    assert made.policy == ("hybrid" if "torch.ops" in made.code else "own")
    assert made.code == (FOLDER / f"{name}.after.txt").read_text()
    assert not any(word in made.code for word in ("_inductor", "torch._C", "async_compile"))
    assert max(map(len, made.code.splitlines())) <= WIDTH


def replaced(old: str, new: str) -> str:
    assert old in PLAIN
    return PLAIN.replace(old, new)


LAUNCH = next(line.strip() for line in PLAIN.splitlines() if ".run(" in line)
REFUSED = {
    "class (": RewriteReason.NOT_PYTHON,
    replaced(LAUNCH, "pass"): RewriteReason.NO_KERNEL,
    replaced("triton_heuristics.persistent_reduction", "triton_heuristics.split_scan"): (
        RewriteReason.UNKNOWN_HEURISTIC
    ),
    replaced("libdevice.exp", "triton_helpers.sort_with_index"): RewriteReason.UNKNOWN_HELPER,
    replaced("libdevice.exp(", "tl.rand(0, "): RewriteReason.RANDOM,
    replaced(LAUNCH, "arg0_1.frobnicate()"): RewriteReason.UNKNOWN_OPERATION,
    replaced(LAUNCH, "for each in buf2: pass"): RewriteReason.UNKNOWN_STATEMENT,
    replaced(LAUNCH, "buf9 = extern_kernels.svd(buf2)"): RewriteReason.UNKNOWN_OPERATION,
    replaced(LAUNCH, "buf9 = torch.ops.aten.bernoulli.default(buf2)"): RewriteReason.RANDOM,
}  # fmt: skip


@pytest.mark.parametrize(("code", "reason"), REFUSED.items(), ids=map(str, REFUSED.values()))
def test_a_form_that_is_not_known_is_refused_with_a_reason(code: str, reason: RewriteReason):
    with pytest.raises(NotRewritten) as refused:
        rewritten("softmax_of_a_row", code)
    assert refused.value.reason is reason


def test_a_long_sum_has_a_line_for_each_term():
    terms = [f"(position_{number} < length_{number})" for number in range(6)]
    (node,) = ast.parse(f"mask = {' & '.join(terms)}").body
    lines = list(print_statement(node, 8))
    assert max(map(len, lines)) <= WIDTH
    assert ast.dump(ast.parse("\n".join(lines).strip())) == ast.dump(ast.Module([node], []))


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
