"""The layout `kernels-hub`: a project for Hugging Face's kernel-builder, and its build.

By the documentation of `kernels` 0.17 (kernel-requirements, writing-kernels): build.toml of edition
5 with a `torch-noarch` section, since Triton compiles at run time; Python in torch-ext/<module>;
build/torch-cuda with the same files, their digest in metadata.json, and a directory of the module's
name for older versions of `kernels`. So the directory can be uploaded as it is, and built again.

    build.toml  flake.nix  CARD.md  README.md  NOTICE.md
    torch-ext/<module>/   __init__.py  NAME.py
    tests/                test_<module>.py  problems/NAME.py
    verdicts/             NAME.json
    build/torch-cuda/     __init__.py  NAME.py  metadata.json  <module>/__init__.py
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING

import tomli_w

from forge.commands.kernels.texts import COMPARE, TOLERANCES, notice, speed_of
from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.commands.kernels.best import BestKernel, Origin

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
SHIM = '''\
"""The package one directory above, for versions of `kernels` that look for it here."""

import importlib.util
import pathlib
import sys

_path = pathlib.Path(__file__).resolve().parents[1] / "__init__.py"
_spec = importlib.util.spec_from_file_location(
    __name__ + "_flat", _path, submodule_search_locations=[str(_path.parent)]
)
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)
__all__ = _module.__all__
globals().update({name: getattr(_module, name) for name in __all__})
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
    build = {**package, f"{module}/__init__.py": SHIM}
    metadata = _metadata(build, name=name, module=module, license=origin.license)
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
        **{f"{VARIANT}/{path}": content for path, content in build.items()},
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


def _metadata(build: Mapping[str, str], *, name: str, module: str, license: str) -> str:
    """metadata.json of the build, with the digest of each of its files."""
    digests = {path: hashlib.sha256(content.encode()).digest() for path, content in build.items()}
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
    rows = "".join(
        f"| `{each.name}` | {each.problem_id} | {speed_of(each)} |\n" for each in kernels
    )
    return (
        f"---\nlibrary_name: kernels\nlicense: {origin.license}\n---\n\n# {name}\n\n"
        f"Triton kernels that a language model ({origin.model}) wrote in the forge run "
        f"{origin.run}. Each was judged correct; `verdicts/` has the judgements, NOTICE.md is "
        "about licences.\n\n```python\nfrom kernels import get_kernel\n\n"
        f'kernels = get_kernel("OWNER/{name}", version={VERSION}, trust_remote_code=True)\n'
        f"layer = kernels.{kernels[0].name}.{kernels[0].entry_point}New()  # arguments of the "
        "problem's class\n```\n\n"
        f"| module | problem | speed-up |\n|---|---|---|\n{rows}"
    )


def _verdict(kernel: BestKernel, origin: Origin) -> str:
    verdict = {**kernel.verdict, "problem_id": kernel.problem_id, "run": origin.run}
    return json.dumps(verdict, indent=1) + "\n"


def _listed(tests: Sequence[tuple[str, str, float]]) -> str:
    return "[\n" + "".join(f"    {each!r},\n" for each in tests) + "]"
