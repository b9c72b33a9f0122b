"""What Inductor would compile becomes plain modules, or is refused with a reason."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from forge.data.harvest.records import Answered, Unanswered
from forge.data.inductor.rewrite import rewrite
from forge.data.inductor.source import Traced, nested

FOLDER = Path(__file__).with_name("inductor")
TRACED: dict[str, dict[str, Any]] = {
    path.name.removesuffix(".before.json"): json.loads(path.read_text())
    for path in sorted(FOLDER.glob("*.before.json"))
}
"""Problems as `forge.data.inductor.compiler.graph.trace` gives them."""
PLAIN = TRACED["softmax_of_a_row"]["code"]


def rewritten(name: str, code: str | None = None, *, before: str = "") -> Answered:
    """The answer of a traced problem, with a text before each name of a size."""
    traced = TRACED[name]
    return rewrite(
        Traced(
            code=code or traced["code"],
            definitions=ast.parse(traced["definitions"]).body,
            given=[ast.parse(one, mode="eval").body for one in traced["given"]],
            result=_with_places(ast.parse(traced["result"], mode="eval").body),
            names={symbol: before + size for symbol, size in traced["names"].items()},
            lines={int(number): text for number, text in traced.get("lines", {}).items()},
        )
    )


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


def replaced(old: str, new: str) -> str:
    assert old in PLAIN
    return PLAIN.replace(old, new)


LAUNCH = next(line.strip() for line in PLAIN.splitlines() if ".run(" in line)
REFUSED = {
    "class (": "not python",
    replaced(LAUNCH, "pass"): "no kernel",
    replaced("triton_heuristics.reduction", "triton_heuristics.split_scan"): "unknown heuristic",
    replaced("libdevice.exp", "triton_helpers.sort_with_index"): "unknown helper",
    replaced("libdevice.exp(", "tl.rand(0, "): "random",
    replaced(LAUNCH, "arg0_1.frobnicate()"): "unknown operation",
    replaced(LAUNCH, "for each in buf2: pass"): "unknown statement",
    replaced(LAUNCH, "buf9 = extern_kernels.svd(buf2)"): "unknown operation",
    replaced(LAUNCH, "buf9 = torch.ops.aten.bernoulli.default(buf2)"): "random",
}


@pytest.mark.parametrize(("code", "reason"), REFUSED.items(), ids=map(str, REFUSED.values()))
def test_a_form_that_is_not_known_is_refused_with_a_reason(code: str, reason: str):
    with pytest.raises(Unanswered) as refused:
        rewritten("softmax_of_a_row", code)
    assert refused.value.reason == reason


@pytest.mark.parametrize("name", TRACED)
def test_longer_names_change_no_line(name: str):
    longer = rewritten(name, before="quite_a_long_").code
    assert longer.replace("quite_a_long_", "") == rewritten(name).code


SUMS = [
    "w + h * W + c * H * W + n * C * H * W",
    "w + 2 * h * (W - 1) + 4 * c * (H - 1) * (W - 1)",
    "3 * x - 1 + W * (3 * h - 1) - H",
    "w - w",
    "(a // b) * W + (a // b) * H * W + a % b",
    "-2 * w + 5",
]


@pytest.mark.parametrize("text", SUMS)
def test_a_sum_with_its_factors_outside_has_the_same_value(text: str):
    node = ast.parse(text, mode="eval").body
    made = ast.unparse(nested(node))
    for first in range(1, 6):
        names = {name: first * 7 + place for place, name in enumerate("whcnWHCabx")}
        assert eval(made, dict(names)) == eval(text, dict(names))


def test_an_index_is_read_from_its_first_axis_to_its_last():
    node = ast.parse(SUMS[0], mode="eval").body
    assert ast.unparse(nested(node)) == "((C * n + c) * H + h) * W + w"


def test_a_row_takes_one_program_of_one_dimension():
    """Also where Inductor's blocks have several rows; and no program is left for none."""
    code = rewritten("positions_of_the_largest").code
    kernel = code[code.index("def argmax_kernel") : code.index("class ModelNew")]
    assert "row = tl.program_id(0)" in kernel
    assert "[:, None]" not in kernel
    assert "argmax_kernel[(num_columns,)]" in code
