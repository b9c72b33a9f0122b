"""Tries a problem at other sizes, or makes its answer. Forked by the zygote (role "harvester"), one
a request, sandboxed as an oracle is:

    judge ── CALL {step: sizes, groups} ──▶ the first group that runs  ── DONE {…} ──▶ judge
             CALL {step: answer}        ──▶ the answerer               ── DONE {…} ──▶
                                            what raises                ── FAILED ──▶

The answerer is imported before the fork, if the zygote was asked to. Not covered: a hostile
problem, which could report any size or answer; the answer is judged by others.
"""

from __future__ import annotations

import signal
import socket
import time
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from forge.data.harvest.records import Answered, Unanswered
from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.numbers.called import flatten, leaves
from forge.evalpool.judge.numbers.given import constructor_arguments, make_inputs, run_source
from forge.evalpool.judge.reference.construct import construct, describe, replace_hub, run_eagerly

FILE = "problem.py"
MAX_BYTES = 256 << 20
"""Inputs and outputs of a size that a CPU judges."""
answerer: Callable[[str], Answered] | None = None
"""Set by `load_answerer`, before forks."""


def load_answerer() -> None:
    """Imports the compiler and what makes answers of its code: seconds, once a zygote."""
    global answerer
    from torch._inductor import config

    # For it, importing torch 2.11's Inductor asks the CUDA driver for GPUs, which starts a thread.
    config.use_experimental_benchmarker = False
    from forge.data.inductor.compiler.graph import answer, preload

    preload()
    answerer = answer


def main(sock: socket.socket) -> None:
    request = frames.asked(sock, Kind.CALL).body
    signal.signal(signal.SIGPROF, _give_up)
    signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
    try:
        with torch.no_grad():
            result = _answer(request) if request["step"] == "answer" else _sizes(request)
        frames.send(sock, Kind.DONE, result)
    except frames.PeerGone:
        raise
    except BaseException as error:  # a reference may raise anything; the judge gets it
        frames.send(sock, Kind.FAILED, describe(error))


class TooSlow(BaseException):
    """The processor time of a request is used up, whatever else the machine does."""


def _give_up(number: int, frame: object) -> None:
    raise TooSlow


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    assert answerer is not None, "a zygote of a harvest with answers"
    try:
        return {"is_answered": True, **asdict(answerer(request["source"]))}
    except Unanswered as error:
        return {"is_answered": False, "reason": error.reason, "detail": error.detail}


def _sizes(request: Mapping[str, Any]) -> dict[str, Any]:
    """The first of several texts that runs; the first group of texts whose two sizes run; and of
    its large sizes, the first with enough work: by bytes or by operations, counted on tensors
    without memory."""
    replace_hub(request["source"])
    run_eagerly(request["source"])
    number, first = _first_run([request["source"], *request["alternatives"]])
    result: dict[str, Any] = {
        "text": number, "tensors": first.num_tensors, "outputs": first.num_outputs,
        "operations": first.num_operations, "cpu_s": first.cpu_s,
    }  # fmt: skip
    for number, group in enumerate(request["groups"]):
        runs = [_try(text) for text in (group["text"], group["other"])]
        if all(one is not None and one.num_bytes <= MAX_BYTES for one in runs):
            result["group"] = number
            break
    large = request["groups"][result["group"]]["large"] if "group" in result else ()
    for number, text in enumerate(large):
        one = _try(text, device="meta")
        if one is not None and one.num_bytes > request["max_bytes"]:
            break
        if one is not None and (
            one.num_bytes >= request["enough_bytes"] or one.flops >= request["enough_flops"]
        ):
            result["large"] = number
            break
    return result


class _Run:
    """Facts of one forward pass of a text. Raises what it raises."""

    def __init__(self, text: str, *, device: str = "cpu") -> None:
        module, began = types.ModuleType("problem"), time.process_time()
        torch.manual_seed(0)
        with torch.device("meta") if device == "meta" else nullcontext():
            run_source(text, module, file=FILE)
            model = construct(module.__dict__["Model"], constructor_arguments(module, "Model"))
            inputs = make_inputs(module)
            flops_counted = FlopCounterMode(display=False) if device == "meta" else nullcontext()
            with flops_counted as counter, _Operations() as operations:
                outputs = flatten(model(*inputs))
        self.cpu_s, self.num_operations = time.process_time() - began, operations.num
        self.flops = counter.get_total_flops() if counter else 0
        self.num_tensors, self.num_outputs = len(leaves(inputs)), len(outputs)
        self.num_bytes = sum(one.nbytes for one in [*leaves(inputs), *outputs])
        self.is_finite = all(
            one.is_meta or not one.is_floating_point() or bool(torch.isfinite(one).all())
            for one in outputs
        )


class _Operations(TorchDispatchMode):
    """Counts operations, views aside."""

    num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += not func.is_view
        return func(*args, **(kwargs or {}))


def _first_run(texts: Sequence[str]) -> tuple[int, _Run]:
    """Number and run of the first text that runs. Raises what the first one raises."""
    first: Exception | None = None
    for number, text in enumerate(texts):
        try:
            return number, _Run(text)
        except Exception as error:
            first = first or error
    assert first is not None
    raise first


def _try(text: str, *, device: str = "cpu") -> _Run | None:
    """None for sizes that the problem does not bear."""
    try:
        run = _Run(text, device=device)
    except Exception:
        return None
    return run if run.is_finite else None
