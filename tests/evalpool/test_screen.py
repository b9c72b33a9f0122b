"""What the source alone may not say."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from forge.evalpool.judge.screen import screen
from forge.records import Status

if TYPE_CHECKING:
    from collections.abc import Callable

HONEST = """
from __future__ import annotations
import math
from dataclasses import dataclass
import torch, triton
import torch.nn.functional as F
import triton.language as tl

@triton.jit
def k(x, n, B: tl.constexpr):
    pass

@dataclass
class Options:
    block: int = 64

class ModelNew(torch.nn.Module):
    def __init__(self, size=3):
        super().__init__()
        self._size = size
    def forward(self, x):
        try:
            block = getattr(Options(), "block")
        except AttributeError:
            block = 32
        k[(1,)](x, x.numel(), B=block)
        return F.pad(x, (0, 0)).contiguous()

if __name__ == "__main__":
    pass
"""
OF_FIELDS = "import dataclasses as d\n@dataclass\nclass A"


def test_what_kernels_need_is_fine() -> None:
    assert screen(HONEST, entry_point="ModelNew").reason == "ok"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import os", "forbidden_import"),
        ("import forge.data", "forbidden_import"),
        ("from torch import _C", "forbidden_import"),
        ("import torch.utils.cpp_extension", "forbidden_import"),
        ("from triton.runtime import jit", "forbidden_import"),
        ("from . import x", "forbidden_import"),
        ("f = torch.compile", "forbidden_attribute"),
        ("f = torch.ops.aten", "forbidden_attribute"),
        ("f = torch._C", "forbidden_attribute"),
        ("f = (1).__class__.__subclasses__", "forbidden_attribute"),
        ("f = torch.ones(1).numpy()", "forbidden_attribute"),
        ("f = eval('1')", "forbidden_name"),
        ("f = open('x')", "forbidden_name"),
        ("f = __builtins__", "forbidden_name"),
        ("f = getattr(torch, 'o' + 'ps')", "forbidden_call"),
        ("f = getattr(torch, '_C')", "forbidden_call"),
        # The same under another name, or by another way.
        ("import torch as t; f = t.compile", "forbidden_attribute"),
        ("from torch import nn; f = nn.utils", "forbidden_attribute"),
        ("f = torch.nn.functional.torch", "forbidden_attribute"),
        ("t = torch; t.compile", "forbidden_attribute"),
        ("for t in (torch,): t.compile", "forbidden_name"),
        ("from torch import *", "forbidden_import"),
        ("f = torch.builtins.exec", "forbidden_attribute"),
        ("f = torch.os.system", "forbidden_attribute"),
        ("f = torch.sys.modules", "forbidden_attribute"),
        ("f = F.importlib.import_module", "forbidden_attribute"),
        ("f = ModelNew().x.threading", "forbidden_attribute"),
        ("from torch import sys", "forbidden_import"),
        ("g = getattr; g(torch, '_C')", "forbidden_name"),
        ("f = functools.reduce(getattr, ['nn'], F)", "forbidden_name"),
        ("f = getattr(torch, 'compile')", "forbidden_call"),
        ("setattr(tl, 'exp', None)", "forbidden_call"),
        ("tl.exp = None", "forbidden_attribute"),
        ("import typing; typing.get_type_hints(k)", "forbidden_attribute"),
        ("from typing import get_type_hints", "forbidden_import"),
        ("import numpy as np; f = np.asarray(x)", "forbidden_attribute"),
        ("f = vars(F)", "forbidden_name"),
        # A module or a class of others as a value.
        ("m = [torch.nn]; m[0].utils", "forbidden_name"),
        ("def f(m=F): return m.torch", "forbidden_name"),
        ("(m := torch.cuda).memory", "forbidden_name"),
        ("m = getattr(torch, 'nn'); m.utils", "forbidden_call"),
        ("m = torch.nn; m.utils", "forbidden_attribute"),
        ("m = torch.nn; n = m; n.utils", "forbidden_attribute"),
        ("m = torch.get_device_module('cpu')", "forbidden_attribute"),
        ("from torch import get_device_module", "forbidden_import"),
        ("torch.serialization.add_safe_globals([])", "forbidden_attribute"),
        ("torch.PyTorchFileWriter('x')", "forbidden_attribute"),
        ("torch.cuda.memory.CUDAPluggableAllocator('x', 'a', 'b')", "forbidden_attribute"),
        ("torch.nn.parallel.parallel_apply([], [])", "forbidden_attribute"),
        ("torch.set_deterministic_debug_mode(0)", "forbidden_attribute"),
        ("T = torch.Tensor; T.copy_ = None", "forbidden_attribute"),
        ("for T in (torch.Tensor,): T.copy_ = None", "forbidden_name"),
        ("def f(T): T.add = None\nf(tl.tensor)", "forbidden_name"),
        ("type(x).copy_ = None", "forbidden_attribute"),
        ("x.__class__.copy_ = None", "forbidden_attribute"),
        ("T = x.__class__", "forbidden_attribute"),
        ("T = [type][0](x)", "forbidden_name"),
        ("y = type('T', (torch.Tensor,), {'__torch_function__': f})", "forbidden_call"),
        ("k.run = None", "forbidden_attribute"),
        ("setattr(k, 'run', None)", "forbidden_call"),
        ("k.add_pre_run_hook(print)", "forbidden_attribute"),
        ("class A: m = torch.nn\nA.m.utils", "forbidden_name"),
        ("class A:\n    if 1: m = torch.Tensor\nA.m.copy_", "forbidden_name"),
        ("class A: import torch as t\nA.t.ops", "forbidden_import"),
        ("class A:\n    try: from torch import nn as n\n    finally: pass", "forbidden_import"),
        ("f = [F.grad]", "forbidden_attribute"),
        ("f = F.np.save", "forbidden_attribute"),
        ("f = [tl.standard.core]", "forbidden_name"),
        ("f = torch.nn.modules.conv", "forbidden_attribute"),
        ("from torch.autograd.function import hooks", "forbidden_import"),
        ("k.get_capture_scope()", "forbidden_attribute"),
        ("next(iter(k.used_global_vals.values()))", "forbidden_attribute"),
        ("f = k.x['__builtins__']", "forbidden_name"),
        # Others that run code, or hand out what was kept back.
        ("try: torch.x\nexcept AttributeError as e: e.obj", "forbidden_attribute"),
        ("match e:\n    case AttributeError(obj=m): m.compile", "forbidden_attribute"),
        ("import functools; functools.singledispatch(k)", "forbidden_attribute"),
        ("import functools; functools.update_wrapper(k, F, ('_C',))", "forbidden_attribute"),
        ("import functools; functools.wraps(k, assigned=('_C',))(x)", "forbidden_call"),
        ("functools.partial.__new__", "forbidden_attribute"),
        ("import dataclasses; dataclasses.make_dataclass('A', ['x'])", "forbidden_attribute"),
        ("import dataclasses; dataclasses.fields(Options)", "forbidden_attribute"),
        ("import dataclasses; dataclasses.sys.modules", "forbidden_attribute"),
        ("import typing; typing.get_args(int)", "forbidden_attribute"),
        ("from typing import ForwardRef", "forbidden_import"),
        ("import numpy as np; np.savetxt('x', [1])", "forbidden_attribute"),
        ("from numpy import vectorize", "forbidden_import"),
        ("f = '{0.__class__.__init__}'.format(x)", "forbidden_attribute"),
        ("f = '{x}'.format_map(F)", "forbidden_attribute"),
        ("f = x.flatten().tolist()", "forbidden_attribute"),
        ("f = x.apply_(abs)", "forbidden_attribute"),
        ("f = x.as_subclass(object)", "forbidden_attribute"),
        ("f = ModelNew().compile()", "forbidden_attribute"),
        ("f = getattr(ModelNew(), 'compile')()", "forbidden_call"),
        ("class T(metaclass=M): pass", "forbidden_definition"),
        ("class T: __getattr__ = None", "forbidden_name"),
        ("def isinstance(a, b): return b\nT = isinstance(x, torch.Tensor)", "forbidden_name"),
        ("D = {}; D[torch.Tensor] = 1", "forbidden_name"),
        # What Triton runs a kernel with.
        ("k.rewrite = lambda: print", "forbidden_attribute"),
        ("def f(kernel): kernel.rewrite = print\nf(k)", "forbidden_attribute"),
        ("k.rewriter.fn", "forbidden_attribute"),
        ("k.rewritten_fn[0] = print", "forbidden_attribute"),
        ("k.pre_run_hooks.append(print)", "forbidden_attribute"),
        ("k.arg_names = []", "forbidden_attribute"),
        ("alias = k; alias.debug = True", "forbidden_attribute"),
        ("made = triton.jit(print); made.debug = True", "forbidden_attribute"),
        ("setattr(k, 'debug', True)", "forbidden_call"),
        ("f = x.handle.data", "forbidden_attribute"),
        ("f.__name__ = 'repr'", "forbidden_attribute"),
        ("import functools; functools.wraps(x)(k)", "forbidden_name"),
        ("from functools import wraps as w; list(map(w, [k]))", "forbidden_name"),
        ("import functools; w = functools.wraps", "forbidden_name"),
        ("@triton.jit\n@functools.wraps(k)\ndef f(): pass\nimport functools", "forbidden_name"),
        # Names of fields that are run as code.
        ("import typing; typing.TypedDict('T', {'a, b': int})", "forbidden_attribute"),
        ("from typing import TypedDict", "forbidden_import"),
        ("from typing import NewType", "forbidden_import"),
        ("from typing import NamedTuple as N; N('T', [('a', int)])", "forbidden_name"),
        ("dataclass(Options)", "forbidden_name"),
        ("d = dataclass", "forbidden_name"),
        ("import dataclasses; getattr(dataclasses, 'dataclass')(Options)", "forbidden_call"),
        ("from dataclasses import field; f = field()", "forbidden_name"),
        ("from dataclasses import field\nclass A: x: int = field()", "forbidden_name"),
        (
            "from dataclasses import field\n@dataclass\nclass A:\n    x: int = field(); y = [x]",
            "forbidden_name",
        ),
        (
            "from dataclasses import field\n@dataclass\n@print\nclass A: x: int = field()",
            "forbidden_name",
        ),
        (
            f"{OF_FIELDS}:\n x: int = d.field()\n def f(s, y=x): pass",
            "forbidden_name",
        ),
        (
            f"import typing\n{OF_FIELDS}(typing.NamedTuple): x: int = d.field()",
            "forbidden_name",
        ),
        ("class A:\n    def f(): return __class__", "forbidden_name"),
        # Modules that another than the source put among its names.
        ("inspect.getmembers(k)", "forbidden_name"),
        ("def f(): return textwrap.re", "forbidden_name"),
        ("__name__ = 'triton.language'", "forbidden_name"),
        ("def f():\n    global __name__; __name__ = 'x'", "forbidden_name"),
        # Below permitted modules.
        ("tl.str_to_ty('tensordesc<fp32[1],print()', None)", "forbidden_attribute"),
        ("from triton.language.math import wraps", "forbidden_import"),
        ("tl.core.dataclass(x)", "forbidden_attribute"),
        ("from triton.language.core import builtin", "forbidden_import"),
        ("torch.cuda.NewType('a', x)", "forbidden_attribute"),
        ("import torch.backends.xeon.run_cpu as r", "forbidden_import"),
        ("torch.backends.xeon", "forbidden_attribute"),
        ("from torch.nn.attention.flex_attention import flex_attention", "forbidden_import"),
        ("import torch.backends.cudnn.rnn", "forbidden_import"),
        ("tl.target_info.driver.set_active(x)", "forbidden_attribute"),
    ],
)
def test_what_cheats_need_is_refused_with_its_line(line: str, reason: str) -> None:
    screening = screen(HONEST + line, entry_point="ModelNew")
    assert screening.reason == reason
    number = int(screening.detail.split(":")[0].removeprefix("line "))
    assert number > HONEST.count("\n")
    assert line.split("\n")[number - HONEST.count("\n") - 1].strip() in screening.detail


@pytest.mark.parametrize(
    "name", ["__torch_function__", "__torch_dispatch__", "__getattr__", "__del__", "__format__"]
)
def test_methods_that_nobody_calls_may_not_be_defined(name: str) -> None:
    code = f"{HONEST}\nclass A(torch.Tensor):\n    def {name}(self, *a): return 1\n"
    assert screen(code, entry_point="ModelNew").reason == "forbidden_definition"


def test_a_name_means_all_that_it_was_imported_as_in_any_scope() -> None:
    code = f"{HONEST}\nimport torch as t\ndef f():\n    import math as t\nt.compile"
    assert screen(code, entry_point="ModelNew").reason == "forbidden_attribute"


def test_a_checked_builtin_may_not_be_replaced() -> None:
    code = f"{HONEST}\ndef getattr(a, b): return a\nm = getattr(torch, 'nothing')"
    assert screen(code, entry_point="ModelNew").detail.endswith("getattr may not be redefined")


@pytest.mark.parametrize(
    "code",
    [
        "def f(input, vars): return [input for _ in vars(input)]",
        "def f(x): return torch.select(x, 0, 1).copy_(x) if hasattr(tl, 'exp2') else x",
        "def f(x): return getattr(torch, 'float16'), x.load([0]), F.relu(x), math.pi",
        "class A:\n    def __init__(self): self.types, self.compile = 1, 2",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "import numpy as np; f = np.sqrt(2) * np.prod([2, 3])",
        "from torch import Tensor, nn; f = isinstance(nn.Linear, Tensor)",
        # Habits that a filter of words would punish.
        "try:\n    from triton.language.extra import libdevice\nexcept ImportError:\n    pass",
        "# never exec or eval this\nf = 'exec(open(x))'",
        "def f(x: torch.Tensor | None, *, out: list[torch.Tensor]) -> torch.Tensor: pass",
        "from typing import Optional, Tuple\nPair = Tuple[torch.Tensor, Optional[torch.Tensor]]",
        "def f(x): return type(x) is torch.Tensor or type(x).__name__ == x.__class__.__name__",
        "def f(x): raise TypeError(f'got {type(x)}, want {type(x)!r}')",
        "F = torch.nn.functional; f = F.relu",
        "tl_math = tl.math; f = tl_math.exp",
        "acts = {'relu': torch.relu, 'gelu': F.gelu}; f = torch.nn.ReLU",
        "def f(self): self.fc.weight.data, self.bias = self.w.t().contiguous(), None",
        "class A(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x): ctx.n = 1",
        "class A:\n    def __init__(self, shape, run): self.shape, self.run = shape, run",
        "class A(torch.nn.ReLU):\n    __slots__ = ()\n    def __repr__(self): return 'A'",
        "__all__ = ['ModelNew']",
        "w = '{:.3f} {}'.format(1.0, 2)",
        "f = torch.cuda.get_device_properties(0).multi_processor_count",
        "def f(g): torch.cuda.current_stream().wait_stream(g); return torch.cuda.CUDAGraph()",
        "def f(g):\n    with torch.cuda.graph(g): pass",
        "@functools.wraps(k)\n@functools.lru_cache(maxsize=None)\ndef f(): pass",
        "f = torch.zeros(1, dtype=torch.float32).type(torch.int64)",
        "dtypes = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}",
        "from typing import NamedTuple\nclass Sizes(NamedTuple):\n    m: int\n    n: int = 1",
        "import typing as t\ndef f(x: t.Optional[t.Dict[str, t.Any]]) -> t.Iterator[int]: pass",
        f"{OF_FIELDS}:\n x: int = d.field()\n def n(s, x): return x",
        "def prune(configs, args): return [c for c in configs if c.kwargs['B'] <= 64]",
        "def f(x):\n    k.run(x, grid=(1,), warmup=False); k.warmup(x, grid=(1,)); return k.fn",
        "def f(self, n): self.handle, self.kwargs = n, {}; return self.handle",
        "def deco(f):\n    @functools.wraps(f)\n    def g(*a): return f(*a)\n    return g",
        "if __name__ == '__main__': print(Model(), time)\ntime = 1",
        "import torch.backends.cudnn as cudnn\ncudnn.benchmark = True",
        "def f(x): return undefined_here(x)",
    ],
)
def test_what_only_looks_like_a_cheat_is_fine(code: str) -> None:
    screening = screen(f"{HONEST}\n{code}\n", entry_point="ModelNew")
    assert screening.reason == "ok", screening.detail


@pytest.mark.parametrize(
    "code",
    [
        "def f(vars): return 1\ndef g(): return vars(F)",
        "def f():\n    if 0: vars = 1\n    def g(): global vars; return vars(F)",
        "class A:\n    if 0: vars = 1\n    d = vars(F)",
        "if 0: vars = 1\nd = vars(F)",
        "match F:\n    case object(torch=t): t.compile",
    ],
)
def test_a_name_bound_elsewhere_still_means_the_builtin(code: str) -> None:
    assert screen(f"{HONEST}\n{code}\n", entry_point="ModelNew").reason.startswith("forbidden_")


def test_a_syntax_error_is_told_with_its_line() -> None:
    screening = screen("import torch\ndef f(:\n", entry_point="ModelNew")
    assert screening.reason == "syntax_error"
    assert screening.status is Status.COMPILE_ERROR
    assert screening.detail == "line 2: def f(:\nSyntaxError: invalid syntax"


def test_the_class_and_a_kernel_must_be_there() -> None:
    assert screen("x = 1", entry_point="ModelNew").reason == "no_entry_point"
    assert screen("class ModelNew: pass", entry_point="ModelNew").reason == "no_kernel"


@pytest.mark.parametrize(
    "code", ["\0", "(" * 5000, "x" * 100_000, "\ud800", "if 1:\n\tx\n        y"]
)
def test_never_raises(code: str) -> None:
    assert not screen(code, entry_point="ModelNew").is_ok


def reversed_aliases(num: int) -> str:
    return "".join(f"a{i} = a{i + 1}\n" for i in range(num)) + f"a{num} = torch\n"


def fields(num: int) -> str:
    lines = "".join(f"    f{i}: int = dataclasses.field(default=0)\n" for i in range(num))
    return f"import dataclasses\n@dataclasses.dataclass\nclass Fields:\n{lines}"


def num_calls(code: str) -> int:
    """Of Python functions while a source is screened."""
    num = 0

    def note(frame: object, event: str, arg: object) -> None:
        nonlocal num
        num += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        found = screen(HONEST + code, entry_point="ModelNew")
    finally:
        sys.setprofile(before)
    assert found.is_ok
    return num


@pytest.mark.parametrize("make", [reversed_aliases, fields])
def test_a_source_takes_work_in_proportion_to_its_length(make: Callable[[int], str]) -> None:
    assert num_calls(make(800)) < 2.5 * num_calls(make(400))


def test_an_alias_is_followed_against_the_order_of_its_lines() -> None:
    code = HONEST + reversed_aliases(2000) + "a0.compile(k)"
    assert screen(code, entry_point="ModelNew").reason == "forbidden_attribute"
