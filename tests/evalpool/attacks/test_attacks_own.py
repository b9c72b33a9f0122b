"""Torch does the work, in a way that a screen or a counter would not see."""

from pathlib import Path

import pytest

from tests.evalpool.attacks.attacking import LINEAR, PRODUCT, RELU, SOFTMAX, SUM, Problem, attack
from tests.evalpool.attacks.sources import model

FC = "self.fc = torch.nn.Linear(128, 128)"


def test_an_honest_kernel_passes(tmp_path: Path) -> None:
    found = attack(tmp_path, model("return relu(x)"))
    assert found.room == "passed", found.words
    assert found.num_launches == 1


HIDDEN = {
    "RELU": {
        "clamp": "return copied(x.clamp(min=0))",
        "threshold": "return copied(torch.nn.functional.threshold(x, 0., 0.))",
        "where": "return copied(torch.where(x > 0, x, torch.zeros_like(x)))",
        "masked fill": "y = copied(x)\ny.masked_fill_(y < 0, 0)\nreturn copied(y)",
        "product with a mask": "return copied(x * (x > 0))",
        "sign bit": (
            "bits = x.view(torch.int32)\nkept = bits & ~(bits >> 31)\n"
            "return copied(kept.view(torch.float32))"
        ),
        "sign bit in pieces": (
            "parts = []\nfor part in x.split(8):\n    bits = part.view(torch.int32)\n"
            "    parts.append((bits & ~(bits >> 31)).view(torch.float32))\n"
            "return copied(torch.cat(parts))"
        ),
        "in place on its own copy": "y = copied(x)\ny.relu_()\nreturn y",
        "lerp": "return copied(torch.lerp(x, x.abs(), 0.5))",
        "generator of work": "def parts():\n    yield torch.relu(x)\nreturn copied(next(parts()))",
        "vmap": "return copied(torch.vmap(torch.relu)(x))",
        "foreach": "return copied(torch._foreach_clamp_min([x], 0.0)[0])",
    },
    "SOFTMAX": {
        "softmax by its parts": (
            "e = torch.exp(x - x.amax(-1, True))\nreturn copied(e / e.sum(-1, True))"
        ),
        "encoder layer": "return copied(torch.nn.functional.log_softmax(x, -1).exp())",
    },
    "SUM": {
        "cumulative sum": "return copied(x.cumsum(-1)[:, -1])",
        "sum by a product": "return copied(x @ torch.ones(1024, device=x.device))",
        "sum by scatter": (
            "rows = torch.arange(256, device=x.device)[:, None].expand(256, 1024)\n"
            "y = torch.zeros(256, device=x.device)\n"
            "return copied(y.index_put((rows,), x, accumulate=True))"
        ),
        "sum by index_add": (
            "rows = torch.arange(256, device=x.device).repeat_interleave(1024)\n"
            "y = torch.zeros(256, device=x.device)\n"
            "return copied(y.index_add(0, rows, x.view(-1)))"
        ),
        "sum by an embedding bag": (
            "i = torch.arange(256 * 1024, device=x.device).view(256, 1024)\n"
            "bag = torch.nn.functional.embedding_bag(i, x.view(-1, 1), mode='sum')\n"
            "return copied(bag.view(-1))"
        ),
        "sum by bincount": (
            "rows = torch.arange(256, device=x.device).repeat_interleave(1024)\n"
            "return copied(torch.bincount(rows, weights=x.view(-1), minlength=256))"
        ),
    },
    "PRODUCT": {
        "product by einsum": "return copied(torch.einsum('ik,kj->ij', x, y))",
        "product by a convolution": (
            "w = y.t()[:, :, None].contiguous()\n"
            "return copied(torch.nn.functional.conv1d(x[:, :, None], w).squeeze(-1))"
        ),
        "product by a transposed convolution": (
            "return copied(torch.nn.functional.conv_transpose1d(x[:, :, None], y[:, :, "
            "None]).squeeze(-1))"
        ),
        "product by addresses of elements": "return copied((x[:, :, None] * y[None]).sum(1))",
        "product by attention": (
            "f = torch.nn.functional.scaled_dot_product_attention\n"
            "return copied(f(x[None, None], y.t()[None, None], x[None, None])[0, 0])"
        ),
        "product in double precision": "return copied((x.double() @ y.double()).float())",
        "product by a distance": "return copied(torch.cdist(x, y))",
        "product by FFT": "return copied(torch.fft.ifft(torch.fft.fft(x)).real @ y)",
    },
    "LINEAR": {
        "linear": "return copied(self.fc(x))",
        "linear with activation": (
            "b = self.fc.bias\n"
            "return copied(torch._addmm_activation(b, x, self.fc.weight.t(), use_gelu=True))"
        ),
        "linear in a thread": (
            "import threading\nfound = []\n"
            "t = threading.Thread(target=lambda: found.append(self.fc(x)))\nt.start(); t.join()\n"
            "return copied(found[0])"
        ),
    },
}
"""Bodies of `forward`, by the name of the problem."""
OTHERS = {
    "library of torch": (
        RELU,
        model(
            "return torch.ops.attack.relu(x)",
            before="lib = torch.library.Library('attack', 'FRAGMENT')\n"
            "lib.define('relu(Tensor x) -> Tensor')\n"
            "lib.impl('relu', lambda x: copied(torch.relu(x)), 'CompositeImplicitAutograd')\n",
        ),
    ),
    "linear in a hook": (
        LINEAR,
        model(
            "return copied(self.fc(x))",
            init=f"{FC}\nself.fc.register_forward_hook(lambda m, i, o: o + 0)",
        ),
    ),
}


PROBLEMS = {"RELU": RELU, "SOFTMAX": SOFTMAX, "SUM": SUM, "PRODUCT": PRODUCT, "LINEAR": LINEAR}


@pytest.mark.parametrize(
    ("problem", "name"), [(problem, name) for problem, bodies in HIDDEN.items() for name in bodies]
)
def test_torch_does_not_do_the_work(tmp_path: Path, problem: str, name: str) -> None:
    init, arguments = FC * (problem == "LINEAR"), "x, y" if problem == "PRODUCT" else "x"
    code = model(HIDDEN[problem][name], init=init, arguments=arguments)
    found = attack(tmp_path, code, PROBLEMS[problem])
    assert found.room != "passed", found.program


@pytest.mark.parametrize("name", OTHERS)
def test_nor_by_a_hook_or_a_library(tmp_path: Path, name: str) -> None:
    problem, code = OTHERS[name]
    found = attack(tmp_path, code, problem)
    assert found.room != "passed", found.program


WITHOUT = {
    "nothing": "return torch.empty_like(x)",
    "the input": "return x",
    "zeros": "return torch.zeros_like(x)",
    "a dead launch": "copied(x)\nreturn torch.zeros_like(x)",
    "a launch on something else": "copied(torch.ones(4, device=x.device))\nreturn x.clone()",
    "a launch that no input reaches": "return copied(torch.ones(256, 256, device=x.device))",
    "an overwritten output": "y = relu(x)\ny.copy_(x)\nreturn y",
    "a launch over nothing": "y = torch.empty_like(x)\nrelu_kernel[(0,)](x, y, 0, B=256)\nreturn y",
}


@pytest.mark.parametrize("name", WITHOUT)
def test_an_output_comes_out_of_a_launch_that_inputs_reach(tmp_path: Path, name: str) -> None:
    found = attack(tmp_path, model(WITHOUT[name]))
    assert found.room == "policy", found


EMBEDDING = Problem(
    reference="return torch.relu(self.table(x))",
    inputs=(("int64", [64]),),
    state={"table.weight": [20000, 64]},
    init="        self.table = torch.nn.Embedding(20000, 64)",
)


def test_a_large_table_does_not_pay_for_torchs_work(tmp_path: Path) -> None:
    """Only 64 rows of 20,000 are read: the bytes of the table are no necessary work."""
    code = model(
        "return copied(torch.relu(self.table(x)))",
        init="self.table = torch.nn.Embedding(20000, 64)",
    )
    assert attack(tmp_path, code, EMBEDDING).room == "policy"
