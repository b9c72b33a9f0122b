"""A candidate's host code becomes launches and operations over storages."""

import pytest

from forge.evalpool.judge.capture.exchange import CaptureFailed
from forge.evalpool.judge.program import limits
from forge.evalpool.judge.program.format import Launch, Op, Origin, Section
from tests.evalpool.capture.capturing import SCALE, captured, launches, ops, uses

PLAIN = SCALE + "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        "


def forward(*lines: str) -> str:
    return PLAIN + "\n        ".join(lines) + "\n"


def test_a_launch_has_grid_arguments_and_ttir(tmp_path):
    program = captured(tmp_path, forward("return scaled(x, 3.0)"), inputs=[[100]])
    (launch,) = launches(program)
    kernel = program.kernels[launch.kernel]
    assert launch.grid == (2, 1, 1)
    assert launch.arguments[2:] == (100, 3.0)
    assert [(one.name, one.type) for one in kernel.parameters] == [
        ("x", "*fp32"), ("y", "*fp32"), ("n", "i32"), ("factor", "fp32"),
    ]  # fmt: skip
    assert "tt.func public @scale" in kernel.ttir
    assert "loc(" not in kernel.ttir
    assert program.target == "cuda:90:32"
    assert program.stateful == ""
    storages = [program.storages[program.tensors[one].storage] for one in uses(launch)]
    assert [one.origin for one in storages] == [Origin.INPUT, Origin.ALLOCATION]
    assert program.outputs == (uses(launch)[1],)
    rows = [row.strip() for row in kernel.ttir.splitlines()]
    operations = [row for row in rows if row and not row.startswith("}")]
    lines = dict(zip(operations, kernel.lines, strict=True))
    assert lines[next(row for row in operations if "tt.load" in row)] == 8


def test_views_have_no_node(tmp_path):
    code = "import copy\n" + forward(
        "x = copy.copy(x)", "y = scaled(x.view(4, 25).t().contiguous())", "return y[1:, 2]"
    )
    program = captured(tmp_path, code, inputs=[[100]])
    assert ops(program) == ["aten.clone.default"]
    output = program.tensors[program.outputs[0]]
    assert (output.offset, output.shape, output.strides) == (6, (24,), (4,))


def test_parameters_are_the_references(tmp_path):
    code = SCALE + (
        "class ModelNew(torch.nn.Module):\n"
        "    def __init__(self, n):\n"
        "        super().__init__()\n"
        "        self.linear = torch.nn.Linear(n, n)\n"
        "        self.packed = self.linear.weight.t().contiguous()\n"
        "    def forward(self, x):\n"
        "        return scaled(self.packed) , scaled(self.linear.bias)\n"
    )
    state = {"fc.weight": [4, 4], "fc.bias": [4]}
    program = captured(tmp_path, code, inputs=[[4]], init=[4], state=state)
    assert [node.name for node in program.init if isinstance(node, Op)] == ["aten.clone.default"]
    assert {one.name for one in program.storages} == {"fc.weight", "fc.bias", ""}
    packed = program.storages[program.tensors[uses(launches(program)[0])[0]].storage]
    assert (packed.origin, packed.section) == (Origin.ALLOCATION, Section.INIT)
    assert program.returned == "tuple"


def constructed(tmp_path, *lines: str):
    """Operations of a constructor that has a weight and a bias of the reference."""
    code = SCALE + (
        "class ModelNew(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(torch.randn(4, 4))\n"
        "        self.bias = torch.nn.Parameter(torch.zeros(4))\n"
        + "".join(f"        {line}\n" for line in lines)
        + "    def forward(self, x):\n"
        "        return [scaled(one) for one in self.parameters()]\n"
    )
    state = {"weight": [4, 4], "bias": [4], "copied": [4, 4]}
    program = captured(tmp_path, code, inputs=[[4]], state=state)
    return [node.name for node in program.init if isinstance(node, Op)]


@pytest.mark.parametrize(
    "line",
    [
        "self.weight.data[0].fill_(0)",
        "self.weight.data[0] = 0.5",
        "self.weight.data.mul_(0.02).clamp_(-1, 1)",
        "self.weight.data.copy_(torch.eye(4))",
        "torch.nn.init.xavier_uniform_(self.weight.data[:2])",
    ],
)
def test_a_constructor_that_initialises_in_place_leaves_the_references_values(tmp_path, line):
    assert constructed(tmp_path, line) == []


def test_parameters_that_begin_alike_keep_the_references_values(tmp_path):
    """A copy that transposes or takes a part packs weights, and stays."""
    line = "self.copied = torch.nn.Parameter(torch.empty(4, 4))"
    whole, turned, part = (
        constructed(tmp_path, line, f"self.copied.data{into}.copy_(self.weight.data{source})")
        for into, source in [("", ""), ("", ".t()"), ("[0]", "[1]")]
    )
    assert whole == []
    assert turned == part == ["aten.copy_.default"]


def test_a_constructor_may_fold_one_parameter_into_another(tmp_path):
    line = "self.weight.data.mul_(self.bias.data.exp()[:, None])"
    assert constructed(tmp_path, line) == ["aten.exp.default", "aten.mul_.Tensor"]


def test_layers_may_be_deep_copies_of_one(tmp_path):
    """In the reference only the copies are parameters of the model, each with values of its own."""
    code = SCALE + (
        "import copy\n"
        "class ModelNew(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        layer = torch.nn.Linear(4, 4, bias=False)\n"
        "        copies = [copy.deepcopy(layer) for _ in range(2)]\n"
        "        self.layers = torch.nn.ModuleList(copies)\n"
        "    def forward(self, x):\n"
        "        return [scaled(layer.weight) for layer in self.layers]\n"
    )
    state = {"layers.0.weight": [4, 4], "layers.1.weight": [4, 4]}
    program = captured(tmp_path, code, inputs=[[4]], state=state)

    def storage(use) -> int:
        return program.tensors[use.tensor].storage

    copies = [node for node in program.init if isinstance(node, Op)]
    sources = {
        storage(into): program.storages[storage(value)].name
        for into, value in (node.arguments for node in copies)
    }
    read = [storage(launch.arguments[0]) for launch in launches(program)]
    assert {node.name for node in copies} == {"aten.copy_.default"}
    assert [sources[one] for one in read] == ["layers.0.weight", "layers.1.weight"]


def test_an_empty_grid_launches_nothing(tmp_path):
    program = captured(tmp_path, forward("return scaled(x[:0])"), inputs=[[100]])
    assert program.forward == ()


def test_a_float_is_no_size_of_a_grid(tmp_path):
    launch = "scale[(x.numel() / 64,)](x, y, x.numel(), 2.0, BLOCK=64)"
    code = forward("y = torch.empty_like(x)", launch, "return y")
    with pytest.raises(CaptureFailed, match="float"):
        captured(tmp_path, code, inputs=[[128]])


def test_a_grid_that_no_card_has_fails_where_it_is_launched(tmp_path):
    launch = "scale[(1, 65536)](x, y, x.numel(), 2.0, BLOCK=64)"
    code = forward("y = torch.empty_like(x)", launch, "return y")
    with pytest.raises(CaptureFailed, match="65535"):
        captured(tmp_path, code, inputs=[[128]])


def test_numbers_of_a_kernel_are_kept_before_they_are_rounded(tmp_path):
    code = forward("return scaled(x)").replace("* factor", "* 0.1 - 0.5 + (1e38 if BLOCK else 2.7)")
    kernel = captured(tmp_path, code, inputs=[[100]]).kernels[0]
    assert set(kernel.floats) == {0.1, 1e38}


def test_the_card_answers_as_the_target(tmp_path):
    code = forward(
        "assert x.is_cuda and x.device == torch.device('cuda:0') and x.get_device() == 0",
        "assert torch.cuda.get_device_capability() == (8, 0)",
        "assert torch.cuda.get_device_properties(x.device).multi_processor_count == 108",
        "with torch.cuda.device(x.device), torch.autocast('cuda', dtype=torch.float16):",
        "    y = scaled(x)",
        "torch.cuda.synchronize()",
        "return y",
    )
    target = {
        "backend": "cuda", "arch": 80, "warp_size": 32,
        "properties": {"multi_processor_count": 108},
    }  # fmt: skip
    program = captured(tmp_path, code, inputs=[[8]], target=target)
    assert program.target == "cuda:80:32"
    assert len(program.forward) == 1


def test_a_constant_made_on_the_host_is_copied_to_the_card(tmp_path):
    code = forward("t = torch.tensor([1.0, 2.0]).cuda()", "return scaled(t)")
    program = captured(tmp_path, code, inputs=[[2]])
    assert ops(program) == ["aten.copy_.default"]
    assert program.constants == (b"\0\0\x80?\0\0\0@",)


def test_a_constructor_may_read_its_own_tensors_by_numpy(tmp_path):
    code = SCALE + (
        "import numpy\n"
        "class ModelNew(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.w = torch.nn.Parameter(torch.rand(2))\n"
        "        t = torch.from_numpy(numpy.sqrt(torch.tensor([1.0, 4.0]).numpy()))\n"
        "        self.register_buffer('t', t)\n"
        "    def forward(self, x):\n"
        "        return scaled(x) + self.t + self.w\n"
    )
    program = captured(tmp_path, code, inputs=[[2]], state={"w": [2]})
    assert program.constants == (b"\0\0\x80?\0\0\0@",)
    assert [one.name for one in program.storages if one.origin is Origin.PARAMETER] == ["w"]


def test_a_result_kept_from_the_first_call_is_reported(tmp_path):
    code = SCALE + (
        "class ModelNew(torch.nn.Module):\n"
        "    y = None\n"
        "    def forward(self, x):\n"
        "        if self.y is None: self.y = scaled(x)\n"
        "        return self.y\n"
    )
    program = captured(tmp_path, code, inputs=[[8]])
    assert program.forward == ()
    assert program.stateful


def test_a_host_random_number_is_refused(tmp_path):
    with pytest.raises(CaptureFailed, match="another process has other numbers"):
        captured(tmp_path, forward("return x + torch.rand(8).to('cuda')"), inputs=[[8]])


def test_a_fused_gru_cell_is_recorded_by_its_parts(tmp_path):
    code = forward("return torch.nn.GRU(8, 4, device='cuda')(x)[0].squeeze_(1)")
    program = captured(tmp_path, code, inputs=[[5, 1, 8]])
    assert "aten.sigmoid.default" in ops(program)
    assert program.tensors[program.outputs[0]].shape == (5, 4)


def test_weights_packed_at_the_first_call_move_to_init(tmp_path):
    code = SCALE + (
        "class ModelNew(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.w = torch.nn.Parameter(torch.randn(8))\n"
        "        self.packed = None\n"
        "    def forward(self, x):\n"
        "        if self.packed is None: self.packed = scaled(self.w)\n"
        "        return scaled(x) + self.packed\n"
    )
    program = captured(tmp_path, code, inputs=[[8]], state={"w": [8]})
    assert [type(node) for node in program.init] == [Launch]
    assert [type(node) for node in program.forward] == [Launch, Op]


@pytest.mark.parametrize(
    ("code", "stage", "kind", "line", "words"),
    [
        ("import torch\nx = (", "import", "SyntaxError", 2, "never closed"),
        ("raise ValueError('no')", "import", "ValueError", 1, "no"),
        (forward("return y"), "call", "NameError", 17, "'y' is not defined"),
        (forward("return 1"), "call", "TypeError", None, "returned a int"),
        (forward("return torch.zeros(3)"), "call", "TypeError", None, "tensor on cpu"),
        (forward("return scaled(x.cpu())"), "call", "Unsupported", 17, "to the host"),
        (forward("return x * x.sum().item()"), "call", "Unsupported", 17, "without .item()"),
        (forward("return x[x > 0]"), "call", "Unsupported", 17, "read on the host"),
        (forward("return x.unique()"), "call", "Unsupported", 17, "depends on data"),
        (forward("return torch.nn.functional.ctc_loss(x.view(10, 2, 5), torch.ones(2, 2, dtype=int,"
                 " device=x.device), (9, 9), (2, 2))"), "call", "Unsupported", 17, "ctc_loss"),
        (forward("return torch.func.grad(torch.sum)(x)"), "call", "Unsupported", 17, "card"),
        *[
            (forward(f"{one}; return scaled(x)"), "call", "Unsupported", 17, "CUDA streams")
            for one in ("torch.cuda.Stream()", "torch.cuda.CUDAGraph()", "torch.cuda.Event()",
                        "torch.cuda.make_graphed_callables(scaled, (x,))")
        ],
        (forward("triton.testing.do_bench(lambda: scaled(x))"),
         "call", "Unsupported", 17, "@triton.autotune"),
        (forward("scale.warmup(x, x, 8, 2.0, BLOCK=64, grid=(1,)).n_regs"),
         "call", "Unsupported", 17, "n_regs of a compiled kernel"),
        (forward("return scaled(x)").replace("tl.load(x + i", "x.to(tl.int64) + tl.load(x + i"),
         "call", "Unsupported", 12, "a pointer as a number"),
        *[
            (PLAIN.replace("BLOCK=64)", f"BLOCK=64, {one})") + "return scaled(x)",
             "call", "Unsupported", 12, one.split("=")[0])
            for one in ("num_ctas=2", "launch_cooperative_grid=True", "launch_pdl=True")
        ],
        (forward("exit()"), "call", "SystemExit", 17, ""),
        (forward("return scaled(torch.zeros(3))"), "call", "ValueError", 12, "cpu tensor?"),
        (SCALE.replace("* factor", "* wrong") + PLAIN[len(SCALE) :] + "return scaled(x)",
         "compile", "CompilationError", 8, "wrong is not defined"),
    ],
)  # fmt: skip
def test_a_failure_has_its_stage_type_and_line(tmp_path, code, stage, kind, line, words):
    with pytest.raises(CaptureFailed) as found:
        captured(tmp_path, code, inputs=[[100]])
    error = found.value
    assert (error.stage, error.type, error.line) == (stage, kind, line)
    assert words in error.message


@pytest.mark.parametrize("bound", ["MAX_OPERATIONS", "MAX_UNOPTIMIZED"])
def test_a_kernel_beyond_a_bound_of_operations_is_refused_with_both_numbers(
    tmp_path, monkeypatch, bound
):
    monkeypatch.setattr(limits, bound, 5)
    with pytest.raises(CaptureFailed, match=r"kernel scale: \d\d operations.*; 5 are allowed"):
        captured(tmp_path, forward("return scaled(x)"), inputs=[[64]])


def test_annotations_are_types_as_where_the_file_is_imported(tmp_path):
    code = SCALE + (
        "class State:\n    one: torch.Tensor\nassert State.__annotations__['one'] is torch.Tensor\n"
    )
    program = captured(tmp_path, code + PLAIN[len(SCALE) :] + "return scaled(x)", inputs=[[8]])
    assert launches(program)


def test_a_call_with_a_constant_that_is_no_number_repeats_itself(tmp_path):
    code = forward("return x.masked_fill(x > 0, float('nan'))")
    assert captured(tmp_path, code, inputs=[[4]]).stateful == ""
