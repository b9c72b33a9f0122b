# pyright: standard
"""`python -m forge.commands.doctor.probes.kernel CONFIG.json`: runs a Triton kernel.

On a GPU it is compiled and run, under the GPU's lease. Without one it runs as in a judge for CPUs:
in Triton's interpreter with the judge's changes, beside a compilation for a GPU that is not there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from forge.commands.doctor.probes.answer import AnswerFile, gpus_held, run_probe


def run_kernel(config: Mapping[str, Any], answer: AnswerFile) -> None:
    """Run the kernel on the config's GPU, or else in the interpreter; report the result."""
    answer.begin("importing torch and triton")
    import torch

    from forge.commands.doctor.probes import multiply

    if config["uuid"] is None:
        answer.begin("compiling and interpreting a kernel as a judge does")
        _warm_up()
        _time(answer, multiply.is_product_right, "cpu")
        return
    with gpus_held([config["uuid"]]):
        answer.begin("starting the GPU's driver")
        torch.cuda.init()
        answer.begin("compiling and running a kernel")
        _time(answer, multiply.is_product_right, "cuda")


def _time(answer: AnswerFile, is_right: Any, device: str) -> None:
    started = time.monotonic()
    result = is_right(device)
    answer.say(is_right=result, seconds=round(time.monotonic() - started, 2))


def _warm_up() -> None:
    """The judge's own preparation, which depends on Triton's version."""
    from forge.evalpool.judge import bounds, warmup
    from forge.evalpool.judge.compile import Compiler
    from forge.evalpool.judge.personalities import Personalities

    bounds.install()
    warmup.warm_up(Compiler(Personalities()))


if __name__ == "__main__":
    run_probe(run_kernel)
