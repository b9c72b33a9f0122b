# pyright: standard
"""`python -m forge.commands.doctor.probes.kernel CONFIG.json`: runs a Triton kernel.

On a GPU it is compiled and run, under the GPU's lease. Without one it is captured, lowered to
Triton's IR and evaluated, as in a judge.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from forge.commands.doctor.probes.answer import AnswerFile, gpus_held, run_probe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def run_kernel(config: Mapping[str, Any], answer: AnswerFile) -> None:
    """Run the kernel on the config's GPU, or else in the evaluator; report the result."""
    answer.begin("importing torch and triton")
    import torch

    if config["uuid"] is None:
        from forge.commands.doctor.probes import evaluated

        answer.begin("capturing and evaluating a kernel as a judge does")
        _time(answer, evaluated.is_product_right)
        return
    from forge.commands.doctor.probes import multiply

    with gpus_held([config["uuid"]]):
        answer.begin("starting the GPU's driver")
        torch.cuda.init()
        answer.begin("compiling and running a kernel")
        _time(answer, multiply.is_product_right)


def _time(answer: AnswerFile, is_right: Callable[[], bool]) -> None:
    started = time.monotonic()
    result = is_right()
    answer.say(is_right=result, seconds=round(time.monotonic() - started, 2))


if __name__ == "__main__":
    run_probe(run_kernel)
