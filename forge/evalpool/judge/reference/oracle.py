"""Runs references (third-party code too) in a sandbox of its own; no candidate ever enters it.

Forked by the zygote, for one draw or several (`trial/references.py`): seeds from the OS,
parameters moved away from their defaults, inputs with plants, outputs of eager and in float64; all
of it in memory that the judge owns, unmapped before the judge hears of it.

    judge ── PROBLEM (+ memory) ──▶ compute, write ── PROGRESS… LAYOUT ──▶ …         on a CPU
    judge ── PROBLEM ──▶ compute ── LAYOUT ──▶ judge ── FILL (+ memory) ──▶ ── DONE ──▶ …
    judge ── PROBLEM (sketch) ──▶ types and shapes ── LAYOUT ──▶ …
                                        └───── FAILED ──▶ ends, but on a full card
"""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import select
import socket
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forge.evalpool.judge.channel import frames, heap
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import ALIGNMENT_BYTES, TensorSpec, offsets
from forge.evalpool.judge.numbers import called as calls
from forge.evalpool.judge.numbers import parameters
from forge.evalpool.judge.numbers.given import DTYPES, Arguments, Terms, count_sizes, require_room
from forge.evalpool.judge.numbers.opcount import OpCounter, has_products
from forge.evalpool.judge.reference.construct import describe, reported, run_eagerly, training_read
from forge.evalpool.judge.reference.subject import Describer, Subject, rounded_terms, terms_of
from forge.evalpool.judge.wide.plants import plant_state
from forge.evalpool.judge.wide.reference import CannotWiden, kinds_of
from forge.evalpool.judge.wide.sets import NUM_SETS, ROUNDING, InputSet, WideDraw
from forge.evalpool.judge.wide.sought import done_by
from forge.records.examination import Flag

LARGE_BYTES = 8 << 20
"""Tensors of a draw from which free memory goes back to the system, and it has several threads."""
KEPT_S = 10.0
"""Time for which it waits with that for another problem: half of a draw is page faults, and those
of memory that the system must find anew cost most."""
MAX_THREADS = 8
MAX_LEFT_BYTES = 256 << 20
"""Memory on a full card that torch may keep, as for workspaces of libraries."""
UNLIMITED = 1 << 60


class NotSmall(Exception):
    """A problem for a card, whose draws have so many bytes at least; 0 if unknown."""


def main(sock: socket.socket) -> None:
    """Answers the judge on `sock`, one problem after another, until it hangs up or one fails."""
    has_kept = False
    while (num_bytes := _draw(sock)) is not None:
        has_kept = has_kept or num_bytes >= LARGE_BYTES
        if has_kept and not _is_asked(sock, within_s=KEPT_S):
            heap.give_back()
            has_kept = False


def _is_asked(sock: socket.socket, *, within_s: float) -> bool:
    """Waits for the judge. False if it says nothing so long."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(1000 * within_s))


def _draw(sock: socket.socket) -> int | None:
    """Serves one problem. Returns the bytes of its tensors in this process' memory, which are free
    now; None if no other problem may follow."""
    asked = frames.asked(sock, Kind.PROBLEM, takes_fds=True)
    request, failure, is_full = asked.body, None, False
    layout, tensors = dict[str, Any](), list[torch.Tensor]()
    calls.seeds.seed(0)  # those of the operating system have no beginning
    try:
        if request.get("sketch") is True:
            frames.send(sock, Kind.LAYOUT, _sketch(request))
            return 0
        with reported(sock) if request.get("reports") else nullcontext():
            layout, tensors = _compute(request)
            if asked.fds:
                layout["starts"] = written(asked.fds[0], tensors)
    except BaseException as error:  # a reference may raise anything; the judge gets it
        failure, is_full = describe(error), isinstance(error, torch.OutOfMemoryError)
    if failure is not None:
        is_free = is_full and _is_free()  # once nothing refers to what was made
        frames.send(sock, Kind.FAILED, {**failure, "is_free": is_free})
        return 0 if is_free else None
    num_bytes = sum(one.nbytes for one in tensors)
    if not asked.fds:
        torch.cuda.empty_cache()  # at full size the judge has no room for its copy beside it
    frames.send(sock, Kind.LAYOUT, layout)
    if not asked.fds:
        fill = frames.asked(sock, Kind.FILL, takes_fds=True)
        _fill_block(fill.fds[0], fill.body["block_bytes"], tensors)
    tensors.clear()
    gc.collect()  # a model refers to itself
    if asked.fds:
        return num_bytes
    torch.cuda.empty_cache()  # while the judge has the card: no later work here
    frames.send(sock, Kind.DONE, {})
    return 0


def _is_free() -> bool:
    """Frees what this process has on the card. True if next to nothing is left there: it may be
    asked for less, or for another problem."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch._C._cuda_clearCublasWorkspaces()  # each keeps the segment that it was cut from
        torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() <= MAX_LEFT_BYTES


def written(fd: int, tensors: Sequence[torch.Tensor]) -> list[int]:
    """Writes contiguous tensors into memory of the judge's, and closes its descriptor. Returns the
    first byte of each. Nothing stays mapped, so the judge can seal it. Raises MemoryError."""
    starts, end, room = dict[tuple[int, int], int](), 0, os.fstat(fd).st_size
    for one in tensors:
        if one.nbytes and _key(one) not in starts:
            starts[_key(one)] = start = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            end = start + one.nbytes
    if end > room:
        raise MemoryError(f"a draw of more than {room} bytes")
    with mmap.mmap(fd, max(end, 1)) as memory:
        for one in (one for one in tensors if one.nbytes):
            source: NDArray[np.uint8] = one.reshape(-1).view(torch.uint8).numpy()
            target = np.frombuffer(memory, np.uint8, count=one.nbytes, offset=starts[_key(one)])
            np.copyto(target, source)
            del target
    os.close(fd)
    return [starts.get(_key(one), 0) for one in tensors]


def _key(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.nbytes


def _sketch(request: dict[str, Any]) -> dict[str, Any]:
    """The layout of a draw of one set, without values: its source runs on torch's `meta` device.
    Its `kinds` are those that types say. Raises whatever a source does there that needs values."""
    run_eagerly(request["source"])
    terms = Terms(
        precision=request["precision"],
        device="meta",
        is_tf32=False,
        max_bytes=0,
        is_plain=request["plain"],
    )
    with torch.no_grad():
        subject = Subject.load(request, terms)
        inputs = subject.draw()
        reads: list[None] = []
        with training_read(lambda: reads.append(None)):
            called = calls.call_on(subject.model, inputs)
        held = subject.held(is_sketch=True)
        one = InputSet(inputs=inputs, outputs=called.outputs, changed=[], form=called.form)
        state = dict(subject.model.state_dict()) | held
        layout, _ = _describe(subject.init, state=state, sets=[one])
        kinds = frozenset[str]()
        with suppress(CannotWiden):
            if not terms.is_plain:
                kinds = kinds_of(subject.model, calls.leaves(inputs), called.outputs, ())
    subject.module.__dict__.clear()  # typing remembers its classes, and they its constants
    return {
        **layout,
        "order": subject.order,
        "held": list(held),
        "drawn": subject.drawn,
        "flops": 0,
        "names": [],
        "form": called.form,
        "kinds": sorted(kinds),
        "training": bool(reads),
    }


def _compute(request: dict[str, Any]) -> tuple[dict[str, Any], list[torch.Tensor]]:
    terms = terms_of(request)
    torch.backends.cuda.matmul.allow_tf32 = terms.is_tf32 and request["tf32_products"]
    torch.backends.cudnn.allow_tf32 = terms.is_tf32
    if terms.device != "cpu":
        torch.cuda.init()  # a generator that is made later would have torch's own seed
        torch.cuda.set_per_process_memory_fraction(request["memory_share"])
    run_eagerly(request["source"])
    needed = None
    if terms.device == "cpu" or request.get("is_limited"):
        needed = require_room(
            request["source"],
            entry_point=request["entry_point"],
            precision=terms.precision,
            max_bytes=UNLIMITED if "small" in request else terms.max_bytes,
        )
    if terms.device == "cpu":
        if "small" in request and needed is not None and needed > request["small"][0]:
            raise NotSmall(_least_bytes(request, terms))
        heap.keep_freed(needed, memory_bytes=terms.max_bytes)
        is_small = needed is None or needed < LARGE_BYTES  # done sooner than a thread begins
        num_threads = 1 if is_small else min(MAX_THREADS, len(os.sched_getaffinity(0)))
        torch.set_num_threads(num_threads)
    try:
        return _computed(request, terms)
    except calls.Unjudgeable as error:
        if torch.get_num_threads() == 1 or error.flag is not Flag.NONDETERMINISTIC:
            raise
    torch.set_num_threads(1)  # sums of several threads may be added in any order
    return _computed(request, terms)


def _least_bytes(request: dict[str, Any], terms: Terms) -> int:
    """Bytes of a problem's parameters and least number of sets, with outputs in float64, too; 0 if
    unknown."""
    named = {name: request[name] for name in ("entry_point", "precision")}
    sizes = count_sizes(request["source"], **named, max_bytes=0)
    wide = 8 // DTYPES[terms.precision].itemsize
    return NUM_SETS * (sizes.inputs + (1 + wide) * sizes.outputs) + sizes.state if sizes else 0


def _computed(request: dict[str, Any], terms: Terms) -> tuple[dict[str, Any], list[torch.Tensor]]:
    num_ooms = _num_ooms(terms)
    with torch.no_grad():
        subject = Subject.load(request, terms)
        reads: list[None] = []
        with training_read(lambda: reads.append(None)):
            counted = subject.counted()
        if "small" in request:
            is_known = counted is not None and not counted.is_truncating
            work = counted.flops + counted.made_bytes if counted else 0
            if not is_known or work > request["small"][1]:
                raise NotSmall(0)  # a float out of range becomes another integer on a card
        draw = _moved_and_drawn(subject, request, counted)
        state = {name: tensor.clone() for name, tensor in subject.model.state_dict().items()}
        is_short = _num_ooms(terms) > num_ooms
        held = subject.held()
        facts = {
            "order": subject.order,
            "held": list(held),
            "drawn": subject.drawn,
            "rounding": rounded_terms(terms, counted).rounding,
            "flops": 0 if counted is None else counted.flops,
            "products": has_products(counted),
            "names": [] if counted is None else sorted(counted.names),
            "form": draw.sets[0].form,
            "kinds": sorted(draw.kinds),
            "narrow": draw.why,
            "insensitive": draw.insensitive,
            "statistics": draw.needs_statistics,
            "constant": draw.is_constant,
            "training": bool(reads) or counted is None,
            # A set without room was left out, as a failed one is: the judge asks for it once more,
            # with more memory.
            "is_short": is_short,
        }
    subject.module.__dict__.clear()  # typing remembers its classes, and they its constants
    layout, tensors = _describe(subject.init, state=state | held, sets=draw.sets)
    return {**layout, **facts}, tensors


def _moved_and_drawn(
    subject: Subject, request: dict[str, Any], counted: OpCounter | None
) -> WideDraw:
    """Moves the parameters while outputs stay finite, and makes the input sets."""
    model, device = subject.model, subject.terms.device
    aims = request.get("aims")
    is_moved = request["moved"] and aims is None  # else they are as constructed
    state = model.state_dict() if is_moved else {}
    before = {name: tensor.clone() for name, tensor in state.items()}

    def draw() -> WideDraw:
        is_wide = request.get("wide") is True
        draws = subject.draws(counted, made=before, is_wide=is_wide, aims=aims)
        return draws.make(request["num_sets"])

    if not is_moved:
        return draw()
    sign = 0 if counted is None else parameters.sign_of(counted.names)
    is_indexing = counted is None or "indexes" in done_by(counted, request["source"])
    bounds = None if counted is None or is_indexing else counted.compared
    is_wide = request.get("wide")
    for far, has_plants in itertools.product(parameters.Reach, (2, 1, 0) if is_wide else (0,)):
        is_last = not parameters.move(model, far=far, sign=sign, bounds=bounds)
        is_last = is_last and not has_plants
        if has_plants:
            with nullcontext() if device == "cpu" else torch.device(device):
                plant_state(model, before, has_rows=has_plants > 1, has_indices=is_indexing)
        try:
            found = draw()
            is_good = all(map(calls.is_finite, found.sets[0].outputs)) and not (
                has_plants and (found.why == ROUNDING or found.is_constant)
            )
            if is_last or is_good:
                return found
        except torch.OutOfMemoryError:  # the judge gives more, or asks for less
            raise
        except Exception:
            if is_last:
                raise
        model.load_state_dict(before)
    raise AssertionError("a slight move is the last one")


def _num_ooms(terms: Terms) -> int:
    return 0 if terms.device == "cpu" else torch.cuda.memory_stats().get("num_ooms", 0)


def _describe(
    init: Arguments, *, state: dict[str, torch.Tensor], sets: list[InputSet]
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    describer = Describer()
    layout = {
        "init": describer.tree(init),
        "state": [[name, describer.add(tensor)] for name, tensor in state.items()],
        "sets": [
            {
                "inputs": describer.tree(one.inputs),
                "outputs": [describer.add(tensor) for tensor in one.outputs[: one.num_returned]],
                "changed": [[number, describer.add(output)] for number, output in one.changes()],
                "state": [[name, describer.add(tensor)] for name, tensor in one.state.items()],
                "parameters": [
                    [name, describer.add(each)] for name, each in one.parameters.items()
                ],
                "wide": [describer.add(tensor) for tensor in one.wide or ()],
                "exact": [describer.add(tensor) for tensor in one.exact],
                "plants": [list(plant) for plant in one.plants],
                "asks_real": one.asks_real,
                "is_open": one.is_open,
                "rough": one.is_rough,
                "is_partial": one.is_partial,
                "slack": one.slack,
            }
            for one in sets
        ],
    }
    layout["tensors"] = [
        [calls.dtype_name(tensor), list(tensor.shape)] for tensor in describer.tensors
    ]
    return layout, describer.tensors


def _fill_block(fd: int, num_bytes: int, tensors: list[torch.Tensor]) -> None:
    from forge.evalpool.judge.driver import gpu_memory

    specs = [TensorSpec(calls.dtype_name(tensor), tuple(tensor.shape)) for tensor in tensors]
    starts, _ = offsets(specs)
    torch.cuda.empty_cache()
    block = gpu_memory.open_block(fd, num_bytes)
    os.close(fd)
    memory = block.bytes()
    for number, start in enumerate(starts):
        content = tensors[number].flatten().view(torch.uint8)
        memory[start : start + content.numel()].copy_(content)
    block.close()  # waits for the copies
