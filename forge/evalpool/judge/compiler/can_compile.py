"""`python -m forge.evalpool.judge.compiler.can_compile hip:gfx942`: compiles a small kernel.

A child of `forge.evalpool.targets`: exit 0 if Triton can compile for the target, else 1 and the
reason in a line. Triton accepts any name of an architecture, and the compiler may abort on it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from triton._C.libtriton import ir

from forge.evalpool.judge.compiler import backend
from forge.evalpool.judge.compiler.binary import warp_size_of
from forge.evalpool.judge.program.format import Kernel, Options, Parameter

KERNEL = """module {
  tt.func public @fill(%out: !tt.ptr<f32>) {
    %one = arith.constant 1.0 : f32
    tt.store %out, %one : !tt.ptr<f32>
    tt.return
  }
}
"""


def fault(name: str) -> str:
    """The reason why Triton cannot compile for a target; empty if it can."""
    kernel = Kernel(
        name="fill",
        ttir=KERNEL,
        options=Options(),
        parameters=(Parameter(name="out", type="*fp32"),),
    )
    try:
        target = backend.open_target(f"{name}:{warp_size_of(name)}")
        context = ir.context()
        backend.load_dialects(context, target)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "fill.ttir")
            path.write_text(KERNEL)
            module = ir.parse_mlir_module(str(path), context)
        module.context = context
        backend.lower(module, kernel, target, key="")
    except Exception as error:
        return str(error).split("\n")[0]
    return ""


if __name__ == "__main__":
    found = fault(sys.argv[1])
    sys.stdout.write(f"{found}\n")
    sys.exit(bool(found))
