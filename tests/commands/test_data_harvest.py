"""`forge data harvest`: the same files whenever it is killed, and what it leaves out."""

import errno
import io
import json
import signal
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.adapters.pools import JudgeSettings
from forge.commands import data_harvest
from forge.commands.data_harvest import HarvestRequest, harvest
from forge.config.schema import ProblemsTable, PromptTable
from forge.data.build.output import MANIFEST, ResultLog
from forge.data.pairs.conversations import read_pairs
from forge.data.problems import load_problems
from forge.data.prompts.prompt_set import make_prompts
from forge.errors import ConfigError, MachineError
from forge.evalpool.pool import open_private_pool
from forge.records import Problem, Split, Status, Verdict
from forge.records.examination import Examination, Flag
from forge.records.reason import Reason

OPERATIONS = [
    "torch.sin(x) * x.mean(dim=1, keepdim=True)",
    "F.softplus(x - 3.0).cumsum(dim=-1)",
    "torch.where(x > 0.5, x.exp(), x.abs().sqrt())",
    "x.clamp(0.1, 0.7).log().sum(dim=(1, 2))",
    "F.layer_norm(x, x.shape[-1:]).tanh() / 3.0",
    "torch.stack([x.amax(dim=1), x.amin(dim=1)]).flatten(1)",
    "F.pad(x, (1, 2)).roll(1, dims=-1).square()",
    "x.transpose(1, 2).softmax(dim=-1).round()",
]
KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    value = tl.load(x_ptr + tl.arange(0, BLOCK)) * {number}
    tl.store(x_ptr + tl.arange(0, BLOCK), value)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        kernel[(1,)](x, x.numel(), BLOCK=64)
        return x
"""


class Killed(BaseException):
    """The end of the command in the middle."""


class FakePool:
    """Judges without processes: the fourth problem is random, the sixth has no answer."""

    num_judges = 1

    def __init__(self, *, ends_after: int | None = None) -> None:
        self.asked: list[str] = []
        self._ends_after = ends_after

    async def harvest(self, work: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
        self.asked.append(work["step"])
        if self._ends_after is not None and len(self.asked) > self._ends_after:
            raise Killed
        if work["step"] == "sizes":
            return {
                "done": {
                    "text": 0,
                    "tensors": 1,
                    "outputs": 1,
                    "operations": 3,
                    "cpu_s": 0.1,
                    "group": 0,
                    "large": 2,
                }
            }
        number = next(n for n, one in enumerate(OPERATIONS) if one in work["source"])
        if number == 5:
            return {"failed": "no kernel", "detail": "a view"}
        answer = {"code": KERNEL.format(number=number), "policy": "own", "kernels": ["kernel"],
                  "products": 0}  # fmt: skip
        return {"done": {"is_answered": True, **answer}}

    async def examine(self, problem: Any) -> Examination:
        flags = {Flag.NONDETERMINISTIC: "it is"} if OPERATIONS[3] in problem.source else {}
        return Examination(problem_id=problem.problem_id, flags=flags)

    async def judge(self, problem: Any, code: str, *, timing: bool = True) -> Verdict:
        if any(code == KERNEL.format(number=number) for number in range(8)):
            assert len(problem.shapes) == 2
            return Verdict(status=Status.CORRECT, reason=Reason.OK, detail="")
        return Verdict(status=Status.WRONG, reason=Reason.MISMATCH, detail="line 3: wrong")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    for number, operation in enumerate(OPERATIONS):
        root.joinpath(f"m{number}.py").write_text(
            "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
            f"class Net{number}(nn.Module):\n"
            f"    def forward(self, x):\n        return {operation}\n"
        )
    return root


def run(
    source: Path, out: Path, monkeypatch: pytest.MonkeyPatch, pool: FakePool, **options: Any
) -> Any:
    @asynccontextmanager
    async def opened(*_: Any, **__: Any):
        yield pool

    monkeypatch.setattr(data_harvest, "open_private_pool", opened)
    monkeypatch.setattr(data_harvest, "REPAIR_EVERY", 2)
    request = HarvestRequest(
        sources=[str(source)], out=out, heldout_share=0.3, judge=JudgeSettings(device="cpu"),
        **options,
    )  # fmt: skip
    return harvest(request)


def files_of(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


def test_a_harvest_that_was_killed_writes_the_same_bytes(source, tmp_path, monkeypatch):
    done = run(source, tmp_path / "once", monkeypatch, FakePool())
    assert done["problems"]["train"] + done["problems"]["heldout"] == 7
    assert done["pairs"]["correct"] == 6
    assert done["rows"]["repairs"] >= 1
    out = tmp_path / "killed"
    num_asked = 0
    for ends_after in (0, 3, 6, 9):
        pool = FakePool(ends_after=ends_after)
        with pytest.raises(BaseExceptionGroup):
            run(source, out, monkeypatch, pool)
        num_asked += len(pool.asked)
    results = out / ".build" / data_harvest.RESULTS
    results.write_bytes(results.read_bytes() + b'{"key": "cut')
    last = FakePool()
    run(source, out, monkeypatch, last)
    assert files_of(out) == files_of(tmp_path / "once")
    assert len(last.asked) < 15  # of all steps of eight problems
    again = FakePool()
    run(source, out, monkeypatch, again)
    assert again.asked == []


def test_a_harvest_that_was_killed_goes_on_elsewhere_but_not_by_another_torch(
    source, tmp_path, monkeypatch
):
    with pytest.raises(BaseExceptionGroup):
        run(source, tmp_path / "here", monkeypatch, FakePool(ends_after=9))
    (tmp_path / "here").rename(tmp_path / "there")
    results = tmp_path / "there/.build" / data_harvest.RESULTS
    before = results.read_bytes()
    assert before
    with monkeypatch.context() as patched:
        patched.setattr("forge.commands.data_build._version", lambda name: f"another {name}")
        with pytest.raises(ConfigError, match=r"there: holds a build of other .*versions\.torch"):
            run(source, tmp_path / "there", monkeypatch, FakePool())
    assert results.read_bytes() == before
    assert run(source, tmp_path / "there", monkeypatch, FakePool())["pairs"]["correct"] == 6


def test_ctrl_c_writes_the_rows_of_the_problems_that_are_done(source, tmp_path, monkeypatch):
    class Interrupted(FakePool):
        async def harvest(self, work: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
            if len(self.asked) == 6:
                signal.raise_signal(signal.SIGINT)
                await anyio.sleep_forever()
            return await super().harvest(work, limit_s=limit_s)

    run(source, tmp_path / "once", monkeypatch, FakePool())
    out = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        run(source, out, monkeypatch, Interrupted())
    assert not (out / MANIFEST).exists()
    whole, cut = (
        {pair.problem_id for pair in read_pairs(path, prompts=make_prompts(PromptTable()))}
        for path in (tmp_path / "once", out)
    )
    assert cut
    assert cut < whole
    run(source, out, monkeypatch, FakePool())
    assert files_of(out) == files_of(tmp_path / "once")


def test_runs_read_the_rows_and_the_problems(source, tmp_path, monkeypatch):
    out = tmp_path / "out"
    manifest = run(source, out, monkeypatch, FakePool())
    pairs = read_pairs(out, prompts=make_prompts(PromptTable()), say=lambda _: None)
    assert len(pairs) == manifest["rows"]["train"]
    assert {pair.num_turns for pair in pairs} == {1, 2}
    table = {"source": "file", "path": out / "problems.jsonl", "format": "harvest"}
    problems = load_problems(ProblemsTable.model_validate(table), seed=0)
    assert len(problems) == manifest["problems"]["train"]
    assert not any("torch.rand([4, " in problem.source for problem in problems)
    held = [json.loads(line) for line in (out / "problems-heldout.jsonl").read_text().splitlines()]
    assert not {one["id"] for one in held} & {problem.problem_id for problem in problems}
    dropped = [json.loads(line) for line in (out / "dropped.jsonl").read_text().splitlines()]
    assert {(one["step"], one["reason"]) for one in dropped} == {
        ("examined", "nondeterministic"), ("answered", "no kernel"),
    }  # fmt: skip
    card = (out / "README.md").read_text()
    assert "no kernel" in card
    assert "tl.load" in card


def test_a_problem_that_no_judge_answered_is_asked_again_once(source, tmp_path, monkeypatch):
    lost: list[str] = []

    class Broken(FakePool):
        async def harvest(self, work: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
            done = await super().harvest(work, limit_s=limit_s)
            if OPERATIONS[0] not in work["source"]:
                return done
            lost.append(work["step"])
            return {"failed": data_harvest.NO_JUDGE, "detail": ""}

    done = run(source, tmp_path / "out", monkeypatch, Broken())
    assert lost == ["sizes", "sizes"]
    assert done["pairs"]["correct"] == 5


def test_judges_that_answer_nothing_make_no_harvest(source, tmp_path, monkeypatch):
    class Dead(FakePool):
        async def harvest(self, work: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
            return {"failed": data_harvest.NO_JUDGE, "detail": ""}

    out = tmp_path / "out"
    with pytest.raises(
        MachineError, match=r"8 of 8 problems .*the same command asks for these again"
    ):
        run(source, out, monkeypatch, Dead())
    assert run(source, out, monkeypatch, FakePool())["pairs"]["correct"] == 6


def test_scored_problems_are_in_no_file_to_train_on(source, tmp_path, monkeypatch):
    out = tmp_path / "out"
    (out / ".build").mkdir(parents=True)
    (out / "problems.jsonl").write_text("of a harvest that was killed\n")
    run(source, out, monkeypatch, FakePool(), keeps_heldout=True)
    assert not list(out.glob("problems*"))
    assert (out / "scored-problems.jsonl").read_text()
    card = (out / "README.md").read_text()
    assert "held out" in card
    assert 'use = "train"' not in card


def test_a_full_disk_is_one_line(source, tmp_path, monkeypatch):
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ResultLog, "_open", lambda self: Full())
    with pytest.raises(ExceptionGroup) as caught:
        run(source, tmp_path / "out", monkeypatch, FakePool())
    assert caught.group_contains(MachineError, match=r"results\.jsonl: .*No space left on device")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"preset": "loud"}, "--preset loud: one of"),
        ({"policy": "any"}, "--policy any: one of"),
        ({"heldout": ["gone"]}, "--heldout: gone: no such file"),
        ({"out": Path(__file__)}, "--out: .*found a file"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(change, words, source, tmp_path):
    request = HarvestRequest(sources=[str(source)], out=tmp_path / "out")
    with pytest.raises(ConfigError, match=words):
        harvest(replace(request, judge=JudgeSettings(device="cpu"), **change))


def test_a_tree_without_a_problem_says_why(tmp_path, monkeypatch):
    root = tmp_path / "tree"
    root.mkdir()
    (root / "a.py").write_text(
        "import os\n\nclass A(nn.Module):\n    def forward(self, x):\n        os.fork()\n"
    )
    with pytest.raises(ConfigError, match="no problem; 1 imports os"):
        run(root, tmp_path / "out", monkeypatch, FakePool())


UNFIT = """
import os, time, torch
import torch.nn as nn
import torch.utils.model_zoo as model_zoo

class Gate(nn.Module):
    '''A gate over (B, L, C).'''
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim))
        self.eps = eps
    def forward(self, x):
        return torch.sigmoid(x) * self.weight + torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1)
class Sleeps(nn.Module):
    def forward(self, x):
        time.sleep(100); return x * 2
class Forks(nn.Module):
    def forward(self, x):
        os.fork(); return x * 2
class Writes(nn.Module):
    def forward(self, x):
        open("a", "w").write("x"); return x * 3
class Downloads(nn.Module):
    def __init__(self):
        super().__init__()
        self.load_state_dict(model_zoo.load_url("https://example.com/x.pth"))
    def forward(self, x):
        return torch.tanh(x) - torch.sinh(x)
class Needs(nn.Module):
    def forward(self, x):
        return torch.cos(x).cuda()
class Huge(nn.Module):
    def forward(self, x):
        return torch.zeros(25_000_000_000).sum() + x
class Loops(nn.Module):
    def forward(self, x):
        while True: x = x + 1
        return x
class Without(nn.Module):
    def forward(self, x=3):
        return torch.zeros(4) + x
class Random(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)
class Named(nn.Module):
    def forward(self, x):
        return {"a": torch.exp(x)}
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_is_unfit_is_refused_by_its_own_reason(tmp_path):
    root = tmp_path / "tree"
    root.mkdir()
    (root / "m.py").write_text(UNFIT)
    out = tmp_path / "out"
    request = HarvestRequest(sources=[str(root)], out=out, judge=JudgeSettings(device="cpu"))
    done = harvest(request)
    assert done["pairs"]["correct"] == 1
    dropped = [json.loads(line) for line in (out / "dropped.jsonl").read_text().splitlines()]
    assert {one["origin"].rpartition(":")[2]: one["reason"] for one in dropped} == {
        "Sleeps": "imports time",
        "Forks": "imports os",
        "Writes": "reads or writes files",
        "Downloads": "asks the network",
        "Needs": "its code asks for a GPU",
        "Huge": "out of memory",
        "Loops": "too slow",
        "Without": "no tensor among the inputs",
        "Random": "nondeterministic",
        "Named": "the reference returns a dict",
    }


def test_a_problem_that_is_judged_again_has_the_same_words():
    source = (
        "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x * 3.0\n\ndef get_inputs():\n    return [torch.randn(64)]\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    made = "y = torch.empty_like(x)\n        kernel[(1,)](x, y, "
    code = (
        KERNEL.format(number=2.0).replace("kernel[(1,)](x, ", made).replace("return x", "return y")
    )
    code = code.replace("(x_ptr, n", "(x_ptr, y_ptr, n").replace("store(x_ptr", "store(y_ptr")

    async def said() -> set[str]:
        table = JudgeSettings(device="cpu", workers=1).table()
        async with open_private_pool(table, harvests="problems") as pool:
            problem = Problem(
                problem_id="again", source=source, family="tree", level=1, split=Split.SFT
            )
            problems = problem, replace(problem, source=f"{source}# of another draw\n")
            return {(await pool.judge(one, code, timing=False)).detail for one in problems}

    (found,) = anyio.run(said)
    assert "output[0]: expected" in found
