"""Problems from files: their definitions, arguments and sizes, and what is no problem."""

import ast
import random
from pathlib import Path
from textwrap import dedent

import pytest

from forge.data import mistakes
from forge.data.build.choice import HeldoutProblems
from forge.data.harvest.closure import Closure, Library
from forge.data.harvest.harvested import Sieve, fault_of
from forge.data.harvest.kernelbench import FILE, SAMPLE, mark, operations_of
from forge.data.harvest.records import Found, Rejected
from forge.data.harvest.sizes import replaced, size_groups
from forge.data.harvest.sources import open_sources
from forge.errors import ConfigError
from tests.data.build.samples import write_jsonl

LAYERS = """
import torch.nn.functional as F
from torch import nn
from registry import register

def act(x: 'Tensor'):
    return F.silu(x)

class Model(nn.Module):
    def forward(self, x):
        return x + 1

@register('gated')
class Gated(nn.Module):
    def __init__(self, dim, cfg: Config = None, eps=1e-5):
        super(Gated, self).__init__()
        self.inner = Model()
        self.drop = nn.Dropout2d(0.1)
        self.weight = nn.Parameter(torch.ones(dim))
    def forward(self, x):
        return F.dropout(self.inner(act(x)), 0.5, self.training) * self.drop(self.weight)
"""
PARITY = """
nn = _module
import torch, torch.nn as nn, cv2
from _paritybench_helpers import _mock_config
from torch.nn import *

class Block(nn.Module):
    def __init__(self, config, width=3, *, bias=True):
        super().__init__()
        self.fc = nn.Linear(config.dim, width, bias=bias)
    def forward(self, x, scale):
        return self.fc(x) * scale

class Sees(nn.Module):
    def forward(self, x):
        return cv2.blur(x)

TESTCASES = [
    (Block,
     lambda: ([], {'config': _mock_config(dim=4), 'bias': False}),
     lambda: ([torch.rand([4, 4])], {'scale': torch.rand([4, 1])}),
     True),
    (Sees, lambda: ([], {}), lambda: ([torch.rand([4, 4, 4, 4])], {}), False),
    (Missing, lambda: ([], {}), lambda: ([torch.rand([4, 4, 4, 4])], {}), False),
]
"""


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return root


def read(source: Path | str) -> tuple[dict[str, Found], dict[str, str]]:
    """Problems and reasons by their origins."""
    (opened,) = open_sources([str(source)])
    every = [one for unit in opened.units() for one in opened.read(unit)]
    reasons = {one.origin: one.reason for one in every if isinstance(one, Rejected)}
    return {one.origin: one for one in every if isinstance(one, Found)}, reasons


def defined(text: str) -> list[str]:
    nodes = ast.parse(text).body
    return [one.name for one in nodes if isinstance(one, ast.ClassDef | ast.FunctionDef)]


def test_a_class_brings_what_it_uses_and_becomes_model(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        pkg__layers=LAYERS.replace("from torch import nn", "import torch\nfrom torch import nn"),
        pkg__head="from . import layers as L\nfrom torch import nn\n\nclass Head(nn.Module):\n"
        "    def forward(self, x):\n        return L.Gated(4)(x)",
    )
    library = Library(root)
    inputs = ast.parse("[torch.rand(2, 4)]", mode="eval").body
    none = ast.parse("[]", mode="eval").body
    text = Closure(library, "pkg.layers", "Gated").text(inputs=inputs, arguments=none)
    assert sorted(defined(text)) == ["Model", "Model2", "act", "get_init_inputs", "get_inputs"]
    assert "register" not in text
    assert "Config" not in text
    assert "super(Model, self)" in text
    assert "self.inner = Model2()" in text
    assert "self.drop = nn.Identity()" in text
    assert "return self.inner(act(x)) * self.drop(self.weight)" in text
    other = Closure(library, "pkg.head", "Head").text(inputs=inputs, arguments=none)
    assert "return Gated(4)(x)" in other
    assert fault_of(text) is None


def test_cases_of_paritybench_become_problems_with_arguments_in_order(tmp_path: Path) -> None:
    found, reasons = read(write(tmp_path, generated__test_a_b=PARITY))
    assert reasons == {
        "generated/test_a_b.py:1": "imports cv2",
        "generated/test_a_b.py:2": "unresolved name",
    }
    (one,) = found.values()
    assert one.name == "Block"
    assert "[torch.rand([4, 4]), torch.rand([4, 1])]" in one.text
    assert "[[{'dim': 4}], {'bias': False}]" in one.text
    assert "config = SimpleNamespace(**config)" in one.text
    assert "from types import SimpleNamespace" in one.text


def test_arguments_come_from_tests_before_names(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        layers=LAYERS.replace("dim, cfg: Config = None, ", "dim, path: str = '', "),
        tests__test_layers="def test_it():\n    m = Gated(24)\n    m(torch.randn(5, 7, 24))\n",
    )
    root.joinpath("LICENSE").write_text("MIT License\n")
    (root / "layers.py").write_text("import torch\n" + (root / "layers.py").read_text())
    found, reasons = read(root)
    assert reasons == {}
    assert set(found) == {"layers.py:Model", "layers.py:Gated"}
    one = found["layers.py:Gated"]
    assert "torch.rand([5, 7, 24])" in one.text
    assert "return [24]" in one.text
    assert any("return [16]" in text for text in one.alternatives)
    assert one.licence == "MIT"


def test_inputs_have_the_width_of_a_default_where_nothing_else_is_given(tmp_path: Path) -> None:
    layers = LAYERS.replace("dim, cfg: Config = None", "dim=48")
    found, _ = read(write(tmp_path, layers=f"import torch\n{layers}"))
    assert ", 48]" in found["layers.py:Gated"].text


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("x.clamp(min=0)", "torch.relu(x)", True),
        ("torch.clamp_min(x, 0.0)", "F.relu(x)", True),
        ("x.clamp_max(3)", "torch.clamp(x, max=3)", True),
        ("x.clamp(min=3)", "torch.relu(x)", False),
        ("x.clamp(0, 1)", "torch.relu(x)", False),
    ],
)
def test_clamps_are_one_operation_and_a_relu_is_another(one: str, other: str, is_same: bool):
    first, second = (
        operations_of(ast.parse(SAMPLE.replace("torch.relu(self.linear(x))", text)))
        for text in (one, other)
    )
    assert (first == second) is is_same


def test_a_logger_of_the_tree_is_that_of_python(tmp_path: Path) -> None:
    write(
        tmp_path,
        logs="import sys\ndef get_logger(name):\n    return sys.stderr\n",
        layers="""
            from torch import nn
            from . import logs as logging

            logger = logging.get_logger(__name__)

            class Double(nn.Module):
                def forward(self, x):
                    logger.warning("twice")
                    return x * 2
        """,
    )
    (found,) = read(tmp_path)[0].values()
    assert "logger = logging.getLogger(__name__)" in found.text
    assert "import logging\n" in found.text


BOOK = """
import torch
from _paritybench_helpers import _mock_config
import torch.nn as nn

class Scaled(nn.Module):
    def __init__(self, config, bias=True):
        super().__init__()
        self.fc = nn.Linear(config.dim, 3, bias=bias)
    def forward(self, x):
        return self.fc(x) * 2

def get_inputs():
    return [torch.rand([4, 4, 4, 4])]

def get_init_inputs():
    return [[], {'config': _mock_config(dim=4), 'bias': False}]
"""
PLAIN = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x)

def get_inputs():
    return [torch.rand(4)]

def get_init_inputs():
    return []
"""


def test_rows_of_any_format_become_problems(tmp_path: Path) -> None:
    rows = [
        {"entry_point": "Scaled", "python_code": BOOK, "uuid": 5, "repo_name": "a/b",
         "licenses": ["MIT"], "triton_code": "x"},
        {"id": "p", "code": PLAIN, "kind": "sines", "level": 1},
        {"text": "x"},
        {"entry_point": "Gone", "python_code": BOOK},
    ]  # fmt: skip
    write_jsonl(tmp_path / "book.jsonl", rows)
    found, reasons = read(f"rows:{tmp_path / 'book.jsonl'}")
    first, second = found.values()
    assert (first.origin, first.kind, first.licence) == ("a/b:book/1", "kernelbook", "MIT")
    assert "return [{'dim': 4}, False]" in first.text
    assert "class Model(nn.Module):" in first.text
    assert "_paritybench" not in first.text
    assert fault_of(first.text) is None
    assert (second.text, second.kind) == (PLAIN, "sines")
    assert [*reasons.values()] == ["broken row", "unresolved name"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("[[], {**more}]", "unknown form of get_init_inputs"),
        ("[[], {name: 1}]", "unknown form of get_init_inputs"),
        ("[[], {'a b': _mock_config(dim=4)}]", "configuration object"),
        ("[[], {'class': _mock_config(dim=4)}]", "configuration object"),
        (f"[[0x{'f' * 9000}], {{}}]", "cannot be written"),
    ],
)
def test_a_row_that_cannot_be_written_out_is_left_out(
    tmp_path: Path, arguments: str, reason: str
) -> None:
    start = BOOK[: BOOK.index("    return [[]")]
    row = {"entry_point": "Scaled", "python_code": f"{start}    return {arguments}\n"}
    write_jsonl(tmp_path / "book.jsonl", [row])
    assert [*read(f"rows:{tmp_path}")[1].values()] == [reason]


def test_rows_of_one_repository_in_two_files_differ_in_their_origins(tmp_path: Path) -> None:
    row = {"id": "p", "code": PLAIN, "repo_name": "a/b"}
    for name in ("one", "two"):
        write_jsonl(tmp_path / f"{name}.jsonl", [row])
    assert [*read(f"rows:{tmp_path}")[0]] == ["a/b:one/1", "a/b:two/1"]


def test_a_problem_file_is_a_problem_as_it_is(tmp_path: Path) -> None:
    found, reasons = read(write(tmp_path, level2__gate=SAMPLE))
    assert found["level2/gate.py"].text == SAMPLE
    assert found["level2/gate.py"].level == 2
    assert not reasons


def test_what_cannot_be_read_or_written_out_is_no_fault_of_forge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = " + ".join(["x"] * 2000)
    text = "from . import c\nfrom torch import nn\n\nclass {}(nn.Module):\n"
    text += "    def forward(self, x):\n        return {}"
    write(tmp_path, a=text.format("A", deep), b=text.format("B", "c.f(x)"))
    (tmp_path / "x.py").mkdir()
    (tmp_path / "y.py").symlink_to("gone")
    monkeypatch.chdir(tmp_path)
    found, reasons = read(Path())
    assert not found
    assert reasons["a.py:A"] == "nested too deep"
    assert reasons.keys() == {"a.py:A", "b.py:B"}
    open_sources(["."])[0].facts()
    assert fault_of(SAMPLE.replace("* 0.5", f"* ({deep})")) == ("nested too deep", "")


def test_a_file_may_name_its_encoding_and_one_that_is_no_python_says_why(tmp_path: Path) -> None:
    text = SAMPLE.encode() + "# caf\xe9\n".encode("latin1")
    (tmp_path / "named.py").write_bytes(b"# coding: latin-1\n" + text)
    (tmp_path / "unnamed.py").write_bytes(text)
    (tmp_path / "wrong.py").write_text("x = 1\nclass A(:\n")
    (opened,) = open_sources([str(tmp_path)])
    named, unnamed, wrong = (one for unit in opened.units() for one in opened.read(unit))
    assert isinstance(named, Found)
    assert isinstance(unnamed, Rejected)
    assert isinstance(wrong, Rejected)
    assert "utf-8" in unnamed.detail
    assert "line 2" in wrong.detail


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import os", "imports os"),
        ("from torch.hub import load", "imports torch.hub"),
        ("open('x')", "reads or writes files"),
        ("torch.save(1, 'x')", "reads or writes files"),
        ("exec('1')", "runs code from text"),
        ("import logging; logging.FileHandler('x')", "reads or writes files"),
        ("torch.multiprocessing.Process(target=print).start()", "starts processes"),
        ("def (", "no Python"),
    ],
)
def test_a_text_that_no_sandbox_should_run_is_named(line: str, reason: str) -> None:
    found = fault_of(f"{SAMPLE}\n{line}\n")
    assert found[0] == reason


def test_sizes_of_a_group_differ_by_axis_and_its_definitions_replace_others() -> None:
    text = SAMPLE.replace("torch.rand(8, 16)", "torch.rand([4, 4, 4, 4])")
    groups = size_groups(text)
    assert "torch.rand([6, 12, 20, 28])" in groups[0].text
    assert "torch.rand([6, 4, 20, 28])" in groups[1].text
    for one in groups:
        assert one.text != one.other != one.large[-1]
    named = text.replace("[4, 4, 4, 4]", "n, width").replace("[16]", "[width]")
    (one, *_) = size_groups(f"{named}\nn = 1024 * 512\nwidth = 16\n")
    assert "n = 6" in one.text
    assert "n = 10" in one.other
    assert "width = 16" in one.other
    assert "n = 1024 * 512" in one.large[0]
    wide = named.replace("[width]", "[width, sides]")
    first, *_, last = size_groups(f"{wide}\nn, width = 4096, 8192\nsides = taps = 3\n")
    assert "n = 6\nwidth = 64\nsides = 3" in first.text
    assert "n = 10\nwidth = 64" in first.other
    assert "width = 8192" in last.text
    assert "n, width = 4096, 8192" in first.large[0]
    assert replaced("a = 4; b = 8; c = 9", "a = 5\nb = 7") == "a = 5\nb = 7\nc = 9"
    made = replaced("n = 4\n\ndef get_inputs():\n    return n\n", "n = 7\nm = 3")
    assert "n = 7" in made
    assert "n = 4" not in made
    assert made.index("m = 3") < made.index("def get_inputs")


def sieve(*heldout: str) -> Sieve:
    return Sieve(heldout=HeldoutProblems(heldout, threshold=0.9, key="--heldout"), similarity=0.9)


def test_a_problem_stays_once_and_never_beside_a_held_out_one(tmp_path: Path) -> None:
    def refused(text: str, origin: str, of: Sieve) -> str:
        found = Found(text=text, origin=origin, name="x", kind="x", level=1)
        out = of.refuse(found, origin=origin, number=0)
        return "" if out is None else f"{out.step}: {out.reason}"

    plain = sieve()
    assert refused(SAMPLE, "a:1", plain) == ""
    renamed = SAMPLE.replace("linear", "project").replace("rand(8, 16)", "rand(4, 16)")
    assert refused(renamed, "b:1", plain) == "distinct: the same again"
    for number, spelling in enumerate(
        ("torch.relu(x)", "F.relu(x)", "x.relu_()", "self.linear(x)")
    ):
        relu = SAMPLE.replace("torch.relu(self.linear(x)) * 0.5", spelling)
        layer = "nn.ReLU()" if "self" in spelling else "width"
        relu = relu.replace("nn.Linear(width, width)", layer)
        assert refused(relu, f"c:{number}", plain) == "apart: similar to a held-out problem"
        relu = relu.replace("nn.ReLU()", "nn.Sequential(nn.ReLU(), nn.Identity())")
        relu = relu.replace(spelling, f"{spelling}.contiguous().clone()")
        assert refused(relu, f"e:{number}", plain) == "apart: similar to a held-out problem"
    (tmp_path / "held.py").write_text(renamed)
    assert refused(SAMPLE, "d:1", sieve(str(tmp_path))) == "apart: similar to a held-out problem"


LONE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, bias: bool = False):
        super().__init__()
        self.layer = {layer}

    def forward(self, x, y):
        return {value}


def get_inputs():
    return [torch.rand({x}), torch.rand({y})]


def get_init_inputs():
    return [8]
"""


@pytest.mark.parametrize(
    ("layer", "value", "x", "y", "is_kernelbenchs"),
    [
        ("nn.Conv2d(channels, 16, 5, bias=bias)", "self.layer(x)", "2, 8, 9, 9", "1", True),
        ("nn.Conv2d(8, 16, 3, 1, 0, 1, 1, False)", "self.layer(x)", "2, 8, 9, 9", "1", True),
        ("nn.Conv2d(8, 8, 3, 2, 3)", "self.layer(x)", "2, 8, 9, 9", "1", True),
        ("nn.Conv2d(8, 8, (3, 5), bias=True)", "self.layer(x)", "2, 8, 9, 9", "1", False),
        ("nn.Conv2d(8, 8, 3, stride=3, bias=bias)", "self.layer(x)", "2, 8, 9, 9", "1", False),
        ("nn.Conv2d(8, 8, 3, stride=(1, 1), bias=bias)", "self.layer(x)", "2, 8, 9, 9", "1", True),
        ("nn.Conv2d(8, 8, 3, groups=2)", "self.layer(x)", "2, 8, 9, 9", "1", False),
        ("None", "x.mean(1)", "4, 5, 6", "1", True),
        ("None", "torch.mean(x, dim=-2)", "4, 5, 6", "1", True),
        ("None", "torch.mean(x, dim=1, keepdim=True)", "4, 5, 6", "1", False),
        ("None", "x.mean(-1)", "4, 5, 6", "1", False),
        ("None", "x.amax(1)", "4, 5, 6", "1", True),
        ("None", "x.mean(1)", "4, 5, 6, 7", "1", False),
        ("None", "torch.einsum('ik,jk->ij', x, y)", "4, 5", "6, 5", True),
        ("None", "x.t() @ y", "5, 4", "5, 6", True),
        ("None", "torch.bmm(x, y)", "3, 4, 5", "3, 5, 6", True),
        ("None", "torch.bmm(x, y.transpose(1, 2))", "3, 4, 5", "3, 6, 5", False),
        ("None", "torch.relu(x)", "4, 5, 6", "1", True),
        ("None", "nn.functional.celu(x)", "4, 5", "1", False),
        ("nn.MaxPool1d(4, 3, padding=1, dilation=2)", "self.layer(x)", "2, 8, 9", "1", True),
        ("nn.MaxPool1d(4, 3, padding=1)", "self.layer(x)", "2, 8, 9", "1", False),
    ],
)
def test_a_lone_operation_is_kernelbenchs_if_its_arguments_are(
    layer: str, value: str, x: str, y: str, is_kernelbenchs: bool
) -> None:
    text = LONE.format(layer=layer, value=value, x=x, y=y)
    found = Found(text=text, origin="a:1", name="x", kind="x", level=1)
    out = sieve().refuse(found, origin="a:1", number=0)
    assert (out is not None and out.step == "apart") is is_kernelbenchs, out


def test_a_lone_operation_with_another_dimension_alone_is_kernelbenchs() -> None:
    """forge run refuses it: its text is the same but for names, comments and sizes."""
    text = (
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
        "    def __init__(self, axis):\n        super().__init__()\n        self.axis = axis\n\n"
        "    def forward(self, x):\n        return torch.sum(x, dim=self.axis, keepdim=True)\n\n\n"
        "n = 7\nm = 12\nk = 26\n\n\ndef get_inputs():\n    x = torch.rand(n, m, k)\n"
        "    return [x]\n\n\ndef get_init_inputs():\n    return [2]\n"
    )
    found = Found(text=text, origin="a:1", name="x", kind="x", level=1)
    out = sieve().refuse(found, origin="a:1", number=0)
    assert out is not None
    assert out.step == "apart"


def test_marks_of_kernelbench_are_of_this_code() -> None:
    """Else: `python -m forge.data.harvest.kernelbench CHECKOUT/KernelBench`."""
    assert FILE.read_text().splitlines()[0] == mark("sample", SAMPLE)


KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(x_ptr + offsets, mask=mask)
    scaled = value * 2.0
    tl.store(out_ptr + offsets, scaled, mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        scale_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
        return out
"""


@pytest.mark.parametrize("mistake", mistakes.MISTAKES, ids=lambda one: one.__name__)
def test_a_mistake_changes_one_place(mistake) -> None:
    made = mistake(KERNEL, random.Random(1))
    assert made not in (None, KERNEL)
    changed = [a != b for a, b in zip(made.split("\n"), KERNEL.split("\n"), strict=True)]
    assert sum(changed) == 1


@pytest.mark.parametrize(
    ("name", "words"), [("", "no *.py"), ("x", "no such directory"), ("y.txt", "a file")]
)
def test_a_source_that_cannot_be_used_is_named(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "y.txt").write_text("")
    root = tmp_path / name
    with pytest.raises(ConfigError, match="SOURCE: ") as caught:
        open_sources([str(root)])
    assert words in str(caught.value)
    assert str(root) in str(caught.value)
