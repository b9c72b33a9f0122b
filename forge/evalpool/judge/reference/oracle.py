"""Runs references (third-party code too) in a sandbox of its own; no candidate ever enters it.

Forked by the zygote, for one draw of a problem or several (`oracles.py`): seeds from the OS,
parameters moved away from their defaults, inputs with plants, outputs of eager and in float64; all
of it in memory that the judge owns, unmapped before the judge hears of it.

    judge ── PROBLEM (+ memory) ──▶ compute, write ── PROGRESS… LAYOUT ──▶ …         on a CPU
    judge ── PROBLEM ──▶ compute ── LAYOUT ──▶ judge ── FILL (+ memory) ──▶ ── DONE ──▶ …
    judge ── PROBLEM (sketch) ──▶ types and shapes ── LAYOUT ──▶ …
                                        └───── FAILED ──▶ ends
"""

from __future__ import annotations

import gc
import itertools
import os
import select
import time
import types
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.channel import frames, heap
from forge.evalpool.judge.channel.frames import IDLE_S, Kind
from forge.evalpool.judge.channel.shm import TensorSpec, offsets
from forge.evalpool.judge.numbers import parameters
from forge.evalpool.judge.numbers.blocks import are_finite
from forge.evalpool.judge.numbers.called import (
    Unjudgeable,
    call_on,
    dtype_name,
    memory_order,
    on_device,
)
from forge.evalpool.judge.numbers.given import (
    Terms,
    cast,
    constructor_arguments,
    draw_inputs,
    placed,
    run_source,
)
from forge.evalpool.judge.numbers.opcount import count_work, has_products, rounding_of
from forge.evalpool.judge.numbers.seeds import fresh_seed, seed_everything
from forge.evalpool.judge.numbers.sizes import require_room
from forge.evalpool.judge.reference.construct import (
    construct,
    construct_noting,
    drawn_tensors,
    parameters_made,
    training_read,
)
from forge.evalpool.judge.reference.delivery import Delivery
from forge.evalpool.judge.reference.reports import describe, reported
from forge.evalpool.judge.reference.stand_ins import config_fields, replace_hub, run_eagerly
from forge.evalpool.judge.wide.plants import plant_state
from forge.evalpool.judge.wide.sets import ROUNDING, Draws, InputSet, WideDraw
from forge.records.examination import Flag

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from forge.evalpool.judge.numbers.given import Arguments
    from forge.evalpool.judge.numbers.opcount import OpCounter

Tree = list[Any]
LARGE_BYTES = 8 << 20
"""Tensors of a draw behind which free memory goes back to the system, and for which it has several
threads."""
KEPT_S = 10.0
"""Time for which it waits with that for another problem: half of a draw is page faults, and those
of memory that the system must find anew cost most."""
MAX_THREADS = 8
AS_TF32 = "fp16"
"""The precision with as many bits as TF32."""
UNLIMITED = 1 << 60
FIRST_SEED = torch.initial_seed()
"""Torch's default: a candidate, too, can draw the constants that a source draws at import."""


class NotSmall(Exception):
    """A problem for a card, whose tensors have so many bytes; 0 if unknown."""


class Describer:
    """Turns values into a JSON tree, gathering the tensors on the way."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor) -> int:
        """Keeps a tensor; returns its number."""
        self.tensors.append(tensor.detach().contiguous())
        return len(self.tensors) - 1

    def tree(self, value: Any) -> Tree:
        """A value as lists with tags; tensors by their numbers. Raises Unjudgeable."""
        if isinstance(value, torch.Tensor):
            order = memory_order(value)
            if order is None:
                return ["tensor", self.add(value)]
            back = sorted(range(len(order)), key=order.__getitem__)
            return ["permuted", [["tensor", self.add(value.permute(order))], back]]
        if isinstance(value, list | tuple):
            return [
                "list" if isinstance(value, list) else "tuple",
                [self.tree(item) for item in value],
            ]
        if isinstance(value, dict):
            return ["dict", [[str(key), self.tree(item)] for key, item in value.items()]]
        if isinstance(value, torch.dtype):
            return ["dtype", str(value).removeprefix("torch.")]
        if (fields := config_fields(value)) is not None:
            return ["config", fields]
        if value is None or isinstance(value, bool | int | float | str):
            return ["value", value]
        raise Unjudgeable(
            f"an argument of type {type(value).__name__} cannot be handed to a candidate"
        )


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
    deadline = time.monotonic() + IDLE_S
    asked = frames.receive(sock, deadline=deadline, expected=(Kind.PROBLEM,), takes_fds=True)
    request, delivery = asked.body, Delivery(asked.fds[0]) if asked.fds else None
    try:
        if request.get("sketch") is True:
            frames.send(sock, Kind.LAYOUT, _sketch(request))
            return 0
        with reported(sock) if request.get("reports") else nullcontext():
            layout, tensors = _compute(request, delivery)
            if delivery is not None:
                layout["starts"] = delivery.finish(tensors)
    except BaseException as error:  # a reference may raise anything; the judge gets it
        frames.send(sock, Kind.FAILED, describe(error))
        return None
    num_bytes = sum(one.nbytes for one in tensors)
    if delivery is None:
        torch.cuda.empty_cache()  # at full size the judge has no room for its copy beside it
    frames.send(sock, Kind.LAYOUT, layout)
    if delivery is None:
        fill = frames.receive(sock, deadline=deadline, expected=(Kind.FILL,), takes_fds=True)
        _fill_block(fill.fds[0], fill.body["block_bytes"], tensors)
    del delivery
    tensors.clear()
    gc.collect()  # a model refers to itself
    if not asked.fds:  # while the judge has the card: no later work here
        torch.cuda.empty_cache()
        frames.send(sock, Kind.DONE, {})
    return num_bytes if asked.fds else 0


def _sketch(request: dict[str, Any]) -> dict[str, Any]:
    """The layout of a draw of one set, without values: its source runs on torch's `meta` device.
    Raises whatever a source does there that needs values."""
    replace_hub(request["source"])
    run_eagerly(request["source"])
    terms = Terms(
        precision=request["precision"],
        device="meta",
        is_tf32=False,
        max_bytes=0,
        is_plain=request["plain"],
    )
    with torch.no_grad():
        made = on_device(terms.device, lambda: _constructed(request, terms))
        inputs = draw_inputs(made.module, terms)
        reads: list[None] = []
        with training_read(lambda: reads.append(None)):
            called = call_on(made.model, inputs)
        held = _held(made, request, terms, is_sketch=True)
        one = InputSet(inputs=inputs, outputs=called.outputs, changed=[], form=called.form)
        layout, _ = _describe(made.init, state=dict(made.model.state_dict()) | held, sets=[one])
    made.module.__dict__.clear()  # typing remembers its classes, and they its constants
    return {
        **layout,
        "order": made.order,
        "held": list(held),
        "drawn": made.drawn,
        "flops": 0,
        "names": [],
        "form": called.form,
        "training": bool(reads),
    }


def _compute(
    request: dict[str, Any], delivery: Delivery | None = None
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    terms = terms_of(request)
    torch.backends.cuda.matmul.allow_tf32 = terms.is_tf32 and request["tf32_products"]
    torch.backends.cudnn.allow_tf32 = terms.is_tf32
    if terms.device != "cpu":
        torch.cuda.init()  # a generator that is made later would have torch's own seed
        torch.cuda.set_per_process_memory_fraction(request["memory_share"])
    replace_hub(request["source"])
    run_eagerly(request["source"])
    if terms.device == "cpu":
        needed = require_room(
            request["source"],
            entry_point=request["entry_point"],
            precision=terms.precision,
            max_bytes=UNLIMITED if "small" in request else terms.max_bytes,
        )
        if "small" in request and needed is not None and needed > request["small"][0]:
            raise NotSmall(needed)
        heap.keep_freed(needed, memory_bytes=terms.max_bytes)
        torch.set_num_threads(_num_threads(needed))
    try:
        return _computed(request, terms, delivery)
    except Unjudgeable as error:
        if torch.get_num_threads() == 1 or error.flag is not Flag.NONDETERMINISTIC:
            raise
    torch.set_num_threads(1)  # sums of several threads may be added in any order
    return _computed(request, terms, delivery)


def _num_threads(needed: int | None) -> int:
    """Threads for a problem whose tensors have as many bytes. Small tensors are done sooner than a
    thread begins."""
    if needed is None or needed < LARGE_BYTES:
        return 1
    return min(MAX_THREADS, len(os.sched_getaffinity(0)))


def _computed(
    request: dict[str, Any], terms: Terms, delivery: Delivery | None
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    num_ooms = _num_ooms(terms)
    with torch.no_grad():
        torch.manual_seed(FIRST_SEED)
        made = on_device(terms.device, lambda: _constructed(request, terms))
        module, init, model = made.module, made.init, made.model
        reads: list[None] = []
        with training_read(lambda: reads.append(None)):
            counted = count_work(model, draw_inputs(module, terms))
        if "small" in request:
            _require_small(counted, request["small"][1])
        terms = rounded_terms(terms, counted)
        draw = _moved_and_drawn(
            module,
            model,
            request=request,
            terms=terms,
            counted=counted,
            delivery=delivery,
            construct=lambda: on_device(
                terms.device,
                lambda: construct(getattr(module, request["entry_point"]), init).to(terms.device),
            ),
        )
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        is_short = _num_ooms(terms) > num_ooms
        held = _held(made, request, terms)
        facts = {
            "order": made.order,
            "held": list(held),
            "drawn": made.drawn,
            "rounding": terms.rounding,
            "flops": 0 if counted is None else counted.flops,
            "products": has_products(counted),
            "names": [] if counted is None else sorted(counted.names),
            "form": draw.sets[0].form,
            "kinds": sorted(draw.kinds),
            "narrow": draw.why,
            "insensitive": draw.insensitive,
            "constant": draw.is_constant,
            "training": bool(reads) or counted is None,
            # A set without room was left out, as a failed one is: the judge asks for it once more,
            # with more memory.
            "is_short": is_short,
        }
    module.__dict__.clear()  # typing remembers its classes, and they its constants
    layout, tensors = _describe(init, state=state | held, sets=draw.sets)
    return {**layout, **facts}, tensors


def terms_of(request: dict[str, Any]) -> Terms:
    """Terms of a request."""
    is_of_card = request["device"] != "cpu" or "small" in request
    return Terms(
        precision=request["precision"],
        device=request["device"],
        is_tf32=request["tf32"] and is_of_card and request["precision"] == "fp32",
        max_bytes=request["max_bytes"],
        is_plain=request["plain"],
    )


def rounded_terms(terms: Terms, counted: OpCounter | None) -> Terms:
    """Terms with what the work of a call says: whether TF32 matters, and the coarsest precision
    that the reference rounds to."""
    is_tf32 = terms.is_tf32 and has_products(counted)
    rounding = rounding_of(counted, terms.precision)
    if is_tf32 and rounding == "fp32":
        rounding = AS_TF32
    return replace(terms, is_tf32=is_tf32, rounding=rounding)


def _require_small(counted: OpCounter | None, max_work: int) -> None:
    """Raises NotSmall for a call whose work is unknown or large, or that casts floats to integers:
    what is out of range becomes another number on a card."""
    if counted is None or counted.is_truncating or counted.flops + counted.made_bytes > max_work:
        raise NotSmall(0)


@dataclass(frozen=True, slots=True)
class Made:
    """A problem's model in its precision, and what it was constructed from."""

    module: types.ModuleType
    init: Arguments
    model: Any
    order: list[str]
    """Names of the parameters in the order in which they were made."""
    drawn: dict[str, str] | None
    """For another protocol the digests of what the constructor draws."""


def _constructed(request: dict[str, Any], terms: Terms) -> Made:
    module = types.ModuleType("problem")
    run_source(request["source"], module)
    seed_everything(fresh_seed())
    init = placed(constructor_arguments(module, request["entry_point"]), terms)
    made: list[torch.Tensor] = []
    entry, drawn = getattr(module, request["entry_point"]), None
    with parameters_made(made.append):
        if terms.is_plain:
            model, origins = construct_noting(entry, init)
            drawn = origins.by_name(model)
        else:
            model = construct(entry, init)
        model = model.to(terms.device)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    order = [names[id(parameter)] for parameter in made if id(parameter) in names]
    return Made(module, init, cast(model, terms.precision), order, drawn)


def _held(
    made: Made, request: dict[str, Any], terms: Terms, *, is_sketch: bool = False
) -> dict[str, torch.Tensor]:
    """Tensors that the constructor draws and no `state_dict` has, by name."""
    entry = getattr(made.module, request["entry_point"])

    def again() -> Any:
        return on_device(terms.device, lambda: construct(entry, made.init).to(terms.device))

    saved = made.model.state_dict()
    found = drawn_tensors(made.model, again, is_sketch=is_sketch)
    return {name: one.to(terms.device) for name, one in found.items() if name not in saved}


def _moved_and_drawn(
    module: Any,
    model: Any,
    *,
    request: dict[str, Any],
    terms: Terms,
    counted: OpCounter | None,
    delivery: Delivery | None,
    construct: Callable[[], Any],
) -> WideDraw:
    """Moves the parameters while outputs stay finite, and makes the input sets."""
    use = {} if delivery is None else {"use": delivery.add}

    def draw() -> WideDraw:
        if delivery is not None:
            delivery.restart()
        draws = Draws(
            module,
            model,
            terms=terms,
            counted=counted,
            source=request["source"],
            construct=construct,
            is_wide=request.get("wide") is True,
        )
        return draws.make(request["num_sets"], **use)

    if not request["moved"]:
        return draw()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sign = 0 if counted is None else parameters.sign_of(counted.names)
    is_wide = request.get("wide") and isinstance(model, torch.nn.Module)
    for far, has_plants in itertools.product(
        parameters.Reach, (True, False) if is_wide else (False,)
    ):
        is_last = not parameters.move(model, far=far, sign=sign)
        is_last = is_last and not has_plants
        if has_plants:
            with nullcontext() if terms.device == "cpu" else torch.device(terms.device):
                plant_state(model, before)
        try:
            found = draw()
            is_good = are_finite(found.sets[0].outputs) and not (
                has_plants and found.why == ROUNDING
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
    """Number of allocations on the card that failed in this process."""
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
                "wide": [describer.add(tensor) for tensor in one.wide or ()],
                "exact": [describer.add(tensor) for tensor in one.exact],
                "plants": [list(plant) for plant in one.plants],
                "asks_real": one.asks_real,
                "is_open": one.is_open,
                "rough": one.is_rough,
                "slack": one.slack,
            }
            for one in sets
        ],
    }
    layout["tensors"] = [[dtype_name(tensor), list(tensor.shape)] for tensor in describer.tensors]
    return layout, describer.tensors


def _fill_block(fd: int, num_bytes: int, tensors: list[torch.Tensor]) -> None:
    """Writes the tensors into GPU memory of the judge."""
    from forge.evalpool.judge.driver import gpu_memory

    specs = [TensorSpec(dtype_name(tensor), tuple(tensor.shape)) for tensor in tensors]
    starts, _ = offsets(specs)
    torch.cuda.empty_cache()
    block = gpu_memory.open_block(fd, num_bytes)
    os.close(fd)
    memory = block.bytes()
    for number, start in enumerate(starts):
        content = tensors[number].flatten().view(torch.uint8)
        memory[start : start + content.numel()].copy_(content)
    block.close()  # waits for the copies
