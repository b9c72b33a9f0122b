"""`torch.compile` in the source of a reference."""

from __future__ import annotations

import pytest
import torch

from forge.evalpool.judge.reference.stand_ins import run_eagerly


def refuse(*_):
    raise RuntimeError("no compiler")


@pytest.mark.parametrize(
    ("source", "is_eager"), [("@torch.compile", True), ("import torch", False)]
)
def test_a_source_that_names_the_compiler_runs_without(source, is_eager):
    double = torch.compile(lambda x: x * 2, backend=refuse)
    run_eagerly(source)
    try:
        if is_eager:
            assert double(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
        else:
            with pytest.raises(RuntimeError, match="no compiler"):
                double(torch.ones(3))
    finally:
        torch.compiler.set_stance("default")
