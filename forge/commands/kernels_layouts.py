"""Contents of a directory of exported kernels, by path, in one of two layouts.

    files         NAME/kernel.py, problem.py, verdict.json, test_kernel.py; README.md, NOTICE.md
    kernels-hub   a project for Hugging Face's kernel-builder, and its build:
        build.toml  flake.nix  CARD.md  README.md  NOTICE.md
        torch-ext/<module>/   __init__.py  NAME.py
        tests/                test_<module>.py  problems/NAME.py
        verdicts/             NAME.json
        build/torch-cuda/     __init__.py  NAME.py  metadata.json

The project follows the documentation of `kernels` 0.17 (kernel-requirements, writing-kernels):
build.toml of edition 5 with a `torch-noarch` section, since Triton compiles at run time; Python in
torch-ext/<module>; build/torch-cuda with the same files and their digest in metadata.json. So the
directory can be uploaded as it is, and built again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING

import tomli_w

from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.commands.kernels import BestKernel, Origin

LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")
EDITION = 5
VERSION = 0
"""Version 0 is for kernels that are not yet recommended for production."""
VARIANT = "build/torch-cuda"
FLAKE = """\
{
  inputs.kernel-builder.url = "github:huggingface/kernels";

  outputs =
    { self, kernel-builder, ... }:
    kernel-builder.lib.genKernelFlakeOutputs {
      inherit self;
      path = ./.;
    };
}
"""
TOLERANCES = {"fp32": 1e-2, "fp16": 2e-2, "bf16": 2e-2}
"""rtol and atol of an exported test. The judge's own bounds are stricter and by row; a tensor core
may round fp32 products to TF32."""

COMPARE = '''\
def load(name, path):
    """A module from a file, which Triton can read again."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def inputs_of(problem):
    """Arguments of forward: those of get_inputs(), or the first set of get_input_sets()."""
    if not hasattr(problem, "get_input_sets"):
        return problem.get_inputs()
    first = problem.get_input_sets()[0]
    if isinstance(first, dict):
        return problem.get_inputs(**first)
    return first() if callable(first) else first


def moved(value):
    """A tensor, or a list or tuple of them, on the GPU."""
    if isinstance(value, torch.Tensor):
        return value.cuda()
    return type(value)(map(moved, value)) if isinstance(value, (list, tuple)) else value


def compare(problem, kernel, entry_point, tolerance):
    """Run both with the same parameters and inputs, and compare their outputs."""
    made = []
    for module, name in ((problem, entry_point), (kernel, entry_point + "New")):
        torch.manual_seed(0)
        found = getattr(module, name)
        if isinstance(found, type):
            found = found(*problem.get_init_inputs()).cuda().eval()
        made.append(found)
    reference, ours = made
    if isinstance(ours, torch.nn.Module) and isinstance(reference, torch.nn.Module):
        ours.load_state_dict(reference.state_dict(), strict=False)
    torch.manual_seed(1)
    inputs = [moved(each) for each in inputs_of(problem)]
    with torch.no_grad():
        expected = reference(*[copy.deepcopy(each) for each in inputs])
        found = ours(*[copy.deepcopy(each) for each in inputs])
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
'''

TEST = '''\
"""The kernel against its problem: `pytest {file}` or `python {file}`.

On a GPU both run and their outputs are compared. Without one, forge judges the kernel if it is
installed. This is a check that the file works here; the verdict on it is in verdict.json.
"""

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent


{compare}

def judge():
    """forge's verdict on the kernel, on the CPU."""
    if importlib.util.find_spec("forge") is None:
        pytest.skip("needs a GPU, or forge to judge without one")
    files = [str(HERE / "problem.py"), str(HERE / "kernel.py")]
    options = ["--device", "cpu", "--precision", "{precision}", "--json"]
    command = [sys.executable, "-m", "forge", "judge", *files, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_{name}():
    if torch.cuda.is_available():
        problem, kernel = (load(name, HERE / f"{{name}}.py") for name in ("problem", "kernel"))
        compare(problem, kernel, "{entry_point}", {tolerance})
    else:
        verdict = judge()
        assert verdict["status"] == "correct", verdict


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))
'''

HUB_TEST = '''\
"""Every kernel against its problem, on a GPU."""

import copy
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "torch-ext" / "{module}"
KERNELS = {kernels}


{compare}

@pytest.mark.kernels_ci
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("name", "entry_point", "tolerance"), KERNELS)
def test_kernel(name, entry_point, tolerance):
    problem = load(f"problem_{{name}}", HERE / "problems" / f"{{name}}.py")
    kernel = load(f"kernel_{{name}}", PACKAGE / f"{{name}}.py")
    compare(problem, kernel, entry_point, tolerance)
'''


def check_license(identifier: str) -> None:
    """Raise ConfigError if it is no identifier of a licence."""
    if not LICENSE.fullmatch(identifier):
        raise ConfigError(
            f"--license {identifier}: an identifier of the hub, such as apache-2.0, mit or other"
        )


def hub_files(kernels: Sequence[BestKernel], origin: Origin) -> dict[str, str]:
    """Contents of the project by path."""
    name = project_name(origin.run)
    module = name.replace("-", "_")
    package = _package(kernels, origin)
    metadata = _metadata(package, name=name, module=module, license=origin.license)
    tests = [
        (each.name, each.entry_point, TOLERANCES.get(each.precision, 1e-2)) for each in kernels
    ]
    text = HUB_TEST.format(module=module, kernels=_listed(tests), compare=COMPARE)
    return {
        "build.toml": _build_toml(name, origin),
        "flake.nix": FLAKE,
        "CARD.md": _card(name, kernels, origin),
        "README.md": _card(name, kernels, origin),
        "NOTICE.md": notice(origin),
        **{f"torch-ext/{module}/{path}": content for path, content in package.items()},
        "tests/__init__.py": "",
        f"tests/test_{module}.py": text,
        **{f"tests/problems/{each.name}.py": each.problem for each in kernels},
        **{f"verdicts/{each.name}.json": _verdict(each, origin) for each in kernels},
        **{f"{VARIANT}/{path}": content for path, content in package.items()},
        f"{VARIANT}/metadata.json": metadata,
    }


def project_name(run: str) -> str:
    """Name of the project: lower-case letters, digits and dashes, at both ends no dash."""
    plain = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    return plain if plain[:1].isalpha() and len(plain) > 1 else f"kernels-{plain or 'run'}"


def _package(kernels: Sequence[BestKernel], origin: Origin) -> dict[str, str]:
    names = sorted(each.name for each in kernels)
    imports = "".join(f"from . import {name}\n" for name in names)
    listed = "".join(f'    "{name}",\n' for name in names)
    init = (
        f'"""Triton kernels of the forge run {origin.run}: a module for each problem.\n\n'
        'Each has a class `ModelNew`, called like the `Model` of its problem.\n"""\n\n'
        f"{imports}\n__all__ = [\n{listed}]\n"
    )
    return {"__init__.py": init, **{f"{each.name}.py": each.code for each in kernels}}


def _build_toml(name: str, origin: Origin) -> str:
    general = {
        "name": name,
        "version": VERSION,
        "edition": EDITION,
        "license": origin.license,
        "backends": ["cuda"],
    }
    return tomli_w.dumps({"general": general, "torch-noarch": {}})


def _metadata(package: Mapping[str, str], *, name: str, module: str, license: str) -> str:
    """metadata.json of the build, with the digest of each of its files."""
    digests = {path: hashlib.sha256(content.encode()).digest() for path, content in package.items()}
    whole = hashlib.sha256(b"".join(digests[path] for path in sorted(digests))).hexdigest()
    metadata: dict[str, object] = {
        "name": name,
        "id": f"_{module}_cuda_{whole[:7]}",
        "version": VERSION,
        "license": license,
        "python-depends": [],
        "backend": {"type": "cuda"},
        "digest": {
            "algorithm": "sha256",
            "files": {path: base64.b64encode(digests[path]).decode() for path in sorted(digests)},
        },
    }
    return json.dumps(metadata, indent=2) + "\n"


def _card(name: str, kernels: Sequence[BestKernel], origin: Origin) -> str:
    return (
        f"---\nlibrary_name: kernels\nlicense: {origin.license}\n---\n\n# {name}\n\n"
        f"Triton kernels that a language model ({origin.model}) wrote in the forge run "
        f"{origin.run}. Each was judged correct; `verdicts/` has the judgements, NOTICE.md is "
        "about licences.\n\n```python\nfrom kernels import get_kernel\n\n"
        f'kernels = get_kernel("OWNER/{name}", version={VERSION}, trust_remote_code=True)\n'
        f"layer = kernels.{kernels[0].name}.{kernels[0].entry_point}New()  # arguments of the "
        "problem's class\n```\n\n"
        f"{_table('module', kernels)}"
    )


def _verdict(kernel: BestKernel, origin: Origin) -> str:
    verdict = {**kernel.verdict, "problem_id": kernel.problem_id, "run": origin.run}
    return json.dumps(verdict, indent=1) + "\n"


def _listed(tests: Sequence[tuple[str, str, float]]) -> str:
    return "[\n" + "".join(f"    {each!r},\n" for each in tests) + "]"


def plain_files(kernels: Sequence[BestKernel], origin: Origin) -> dict[str, str]:
    """Contents of the layout `files` by path."""
    files = {"README.md": _readme(kernels, origin), "NOTICE.md": notice(origin)}
    for kernel in kernels:
        folder = kernel.name
        files |= {
            f"{folder}/kernel.py": kernel.code,
            f"{folder}/problem.py": kernel.problem,
            f"{folder}/verdict.json": _verdict(kernel, origin),
            f"{folder}/test_kernel.py": test_of(kernel, file="test_kernel.py"),
        }
    return files


def _table(column: str, kernels: Sequence[BestKernel]) -> str:
    """Name, problem and speed of each kernel, in Markdown."""
    lines = [f"| `{each.name}` | {each.problem_id} | {speed_of(each)} |\n" for each in kernels]
    return f"| {column} | problem | speed-up |\n|---|---|---|\n{''.join(lines)}"


def _readme(kernels: Sequence[BestKernel], origin: Origin) -> str:
    return (
        f"# Kernels of {origin.run}\n\nThe best correct kernel of each problem, best first. "
        "`pytest NAME` tests one. NOTICE.md is about licences.\n\n"
        f"{_table('kernel', kernels)}"
    )


def test_of(kernel: BestKernel, *, file: str) -> str:
    """Test of a kernel beside `problem.py` and `kernel.py`."""
    return TEST.format(
        file=file,
        compare=COMPARE,
        name=kernel.name,
        precision=kernel.precision,
        entry_point=kernel.entry_point,
        tolerance=TOLERANCES.get(kernel.precision, 1e-2),
    )


def notice(origin: Origin) -> str:
    """Note about the licences of exported kernels."""
    chosen = (
        "No licence was chosen for them (`--license`): decide before you publish."
        if origin.license == "other"
        else f"They were exported with `--license {origin.license}`."
    )
    return (
        "# Notice\n\n"
        f"These kernels were written by a language model ({origin.model}) in the forge run "
        f"{origin.run} and judged by forge {origin.commit[:8]}. {chosen}\n\n"
        "What may apply to them: the terms of the model and of the data that it was trained on, "
        f"and the licence of the problems, which come from {origin.problems}. The problems are "
        "copies; KernelBench is under the MIT licence. forge claims no rights to the kernels and "
        "gives no warranty.\n"
    )


def speed_of(kernel: BestKernel) -> str:
    """`2.41x (at least 2.30x), 12.3 us against 29.7 us on cuda`; `not timed` on a CPU."""
    row = kernel.verdict
    if row.get("speedup") is None:
        return "not timed"
    return (
        f"{row['speedup']:.2f}x (at least {row['speedup_low']:.2f}x), {row['candidate_us']:.1f} us "
        f"against {row['baseline_us']:.1f} us on {row['device']}"
    )
