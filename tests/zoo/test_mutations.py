"""A thousand random mutations of honest kernels: a verdict for each, and the judge as it was."""

import ast
import os
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import JudgeTable
from forge.records.verdict import Status
from tests.zoo.animals import load
from tests.zoo.conftest import leftovers

HONEST = [one for one in load("honest") if "cpu" in one.devices]
TABLE = JudgeTable(compile_timeout_s=2.0, correct_timeout_s=2.0)
NUM_WARM_UPS = 30
MARATHON = (pytest.mark.marathon, pytest.mark.timeout(600))


def rss_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def num_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def zygote_of(bench: Any) -> int:
    launcher = bench.spawner._process.pid
    (child,) = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return int(child)


def judge_all(bench: Any, seeds: range) -> dict[str, int]:
    """How often each status came of it."""
    found: dict[str, int] = {}
    for seed in seeds:
        animal = HONEST[seed % len(HONEST)]
        code = mutated(animal.code, seed=seed)
        verdict = bench.judge(code, problem=animal.problem, table=TABLE)
        assert verdict.status is not Status.INFRA_ERROR, f"seed {seed}: {verdict.detail}"
        assert verdict.reason
        found[verdict.status] = found.get(verdict.status, 0) + 1
    return found


@pytest.mark.parametrize(
    "seeds", [range(NUM_WARM_UPS, 100), pytest.param(range(100, 1000), marks=MARATHON)], ids=len
)
def test_mutations_get_a_verdict_and_leave_nothing(
    bench_for: Callable[[str], Any], seeds: range
) -> None:
    bench = bench_for("cpu")
    judge_all(bench, range(NUM_WARM_UPS))
    pids = (os.getpid(), zygote_of(bench))
    memory = [rss_bytes(pid) for pid in pids]
    files = [num_files(pid) for pid in pids]
    found = judge_all(bench, seeds)
    assert len(found) >= 4, found
    assert bench.judge_honest().status is Status.CORRECT
    assert leftovers(bench) == set()
    assert [num_files(pid) for pid in pids] == files
    for pid, before in zip(pids, memory, strict=True):
        assert rss_bytes(pid) <= before * 1.05, f"{before} bytes before"


_TOKEN = re.compile(r"\w+|[^\w\s]|\s+")
_OPERATORS = (
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "<",
    "<=",
    "==",
    "@",
    "=",
    ",",
    "(",
    ")",
    "[",
    ":",
    ".",
)
_BINARY = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult, ast.BitAnd)
_COMPARED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)


def mutated(code: str, *, seed: int) -> str:
    """Another source: one to three changes."""
    draw = random.Random(seed)
    for _ in range(draw.randint(1, 3)):
        change = draw.choice((_by_token, _by_line, *[_by_tree] * 6))
        code = change(code, draw)
    return code


def _by_token(code: str, draw: random.Random) -> str:
    tokens = _TOKEN.findall(code)
    if len(tokens) < 2:
        return code
    at, other = draw.randrange(len(tokens)), draw.randrange(len(tokens))
    match draw.randrange(5):
        case 0:
            del tokens[at]
        case 1:
            tokens.insert(at, tokens[other])
        case 2:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case 3:
            tokens[at] = draw.choice(_OPERATORS)
        case _:
            tokens[at] = draw.choice([one for one in tokens if one.isidentifier()] or ["x"])
    return "".join(tokens)


def _by_line(code: str, draw: random.Random) -> str:
    lines = code.split("\n")
    at = draw.randrange(len(lines))
    match draw.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(draw.randrange(len(lines)), lines[at])
        case 2:
            lines = lines[: max(at, len(lines) // 2)]
        case _:
            lines[at] = lines[at][draw.randrange(3) :]
    return "\n".join(lines)


def _by_tree(code: str, draw: random.Random) -> str:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return _by_token(code, draw)
    nodes = [node for node in ast.walk(tree) if isinstance(node, _CHANGED)]
    if nodes:
        _change(draw.choice(nodes), nodes, draw)
    try:
        return ast.unparse(ast.fix_missing_locations(tree))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return code


_CHANGED = (
    ast.Constant,
    ast.Name,
    ast.BinOp,
    ast.Compare,
    ast.Call,
    ast.Attribute,
    ast.FunctionDef,
)


def _change(node: ast.AST, nodes: Sequence[ast.AST], draw: random.Random) -> None:
    match node:
        case ast.Constant(value=bool() | None | str()):
            node.value = draw.choice((True, False, None, "", 0))
        case ast.Constant(value=number):
            node.value = draw.choice((0, 1, -1, 2, number * 2, number + 1, 1 << 40, 0.5))  # pyright: ignore[reportOperatorIssue]
        case ast.Name():
            node.id = draw.choice([one.id for one in nodes if isinstance(one, ast.Name)])
        case ast.BinOp():
            node.op = draw.choice(_BINARY)()
        case ast.Compare():
            node.ops = [draw.choice(_COMPARED)() for _ in node.ops]
        case ast.Call() if node.args or node.keywords:
            (node.keywords or node.args).pop()
        case ast.Attribute():
            names = [one.attr for one in nodes if isinstance(one, ast.Attribute)]
            node.attr = draw.choice(names)
        case ast.FunctionDef() if len(node.body) > 1:
            del node.body[draw.randrange(len(node.body))]
