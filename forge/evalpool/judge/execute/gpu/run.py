"""A loaded program: its modules, its steps, one run of them on the executor's stream.

Used by `child.py` and `timing.py`. A run follows the program's nodes: launches by the driver,
operations by torch. Everything that a launch needs but addresses is made at load.

A kernel's parameters are, in order: its arguments (a descriptor becomes a tensor map), then the
addresses of two scratch buffers. A descriptor's shape and strides, which Triton passes behind it,
are arguments of their own.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from forge.evalpool.judge.compiler.binary import Binary, Failure
from forge.evalpool.judge.compiler.binary import TensorMap as MapFacts
from forge.evalpool.judge.driver import driver as cuda
from forge.evalpool.judge.execute import operations
from forge.evalpool.judge.execute.call import PROGRESS, what_of
from forge.evalpool.judge.execute.gpu.card import Card
from forge.evalpool.judge.execute.gpu.places import BadResult, Places, find_residency
from forge.evalpool.judge.execute.operations import UnknownOperation
from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program import ops


class CannotRun(Exception):
    """The program cannot be run here; the context is sound. `reason` is one word."""

    def __init__(self, reason: str, message: str, *, line: int = 0) -> None:
        super().__init__(message)
        self.reason, self.line = reason, line


class Faulted(Exception):
    """A launch or an operation lost the context: this process must end."""

    def __init__(self, message: str, *, step: Step | None) -> None:
        super().__init__(message)
        self.step = step


@dataclass(slots=True, kw_only=True)
class Step:
    """One node, ready to run. `number` counts nodes in program order, inner ones included."""

    number: int
    node: form.Node
    kernel: str = ""
    function: int = 0
    packed: Packed | None = None
    config: cuda.LaunchConfig | None = None
    scratch: int = -1
    """Number of its scratch buffer; -1 without one."""
    failure: str = ""
    """Reason why its kernel cannot be launched on this card; empty if it can."""
    alternatives: list[list[Step]] = field(default_factory=list["list[Step]"])
    chosen: int | None = None

    @property
    def line(self) -> int:
        return self.node.line

    @property
    def what(self) -> str:
        return what_of(self.node, kernel=self.kernel)


class Progress:
    """Writes the number of the step that runs where the judge can read it."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def note(self, number: int) -> None:
        PROGRESS.pack_into(self._memory, 0, number)


class Loaded:
    """One program with its modules loaded and its buffers mapped."""

    def __init__(
        self,
        program: form.Program,
        binaries: Sequence[Binary | Failure],
        *,
        card: Card,
        progress: Progress,
    ) -> None:
        """Loads modules and maps buffers. Raises CannotRun, with nothing left loaded."""
        self.program = program
        self.card = card
        self.driver = card.driver
        self.progress = progress
        self.residency = find_residency(program)
        self.is_capturing = False
        self._modules: list[int] = []
        self._scratch: list[int] = []
        self._num_steps = 0
        self._places: Places | None = None
        self.memory = card.memory()
        try:
            self._kernels = [self._loaded(one) for one in binaries]
            self.init, self.forward = map(self._steps, (program.init, program.forward))
            self._places = Places(program, self.residency, card=card, scratch=self._scratch)
        except cuda.DriverError as error:
            self.close()
            reason = "out_of_memory" if error.code == 2 else "driver"
            raise CannotRun(reason, str(error)) from error
        except BaseException:
            self.close()
            raise

    @property
    def places(self) -> Places:
        assert self._places is not None
        return self._places

    def run(self, section: form.Section, *, is_checked: bool = False) -> None:
        """Runs a section in the current stream; waits after each step if it `is_checked`, so that a
        fault is found there. Raises CannotRun (the program is at fault or not for this card; the
        context is sound) or Faulted (the context is lost)."""
        self.begin(section)
        with self.torch_memory():
            for position, step in enumerate(self.steps_of(section)):
                self.step(step, is_checked=is_checked)
                if section is form.Section.FORWARD and self.places.is_direct:
                    for storage in self.residency.ends.get(position, ()):
                        self.places.forget(storage)

    @contextmanager
    def chosen(self, choices: Sequence[tuple[int, int]]) -> Iterator[None]:
        """Inside, alternatives run in place of winners. Raises CannotRun if there is no such."""
        before: list[tuple[Step, int | None]] = []
        try:
            for number, alternative in choices:
                step = next(
                    (one for one in (*self.init, *self.forward) if one.number == number), None
                )
                if step is None or not 0 <= alternative < len(step.alternatives):
                    raise CannotRun("request", f"step {number} has no alternative {alternative}")
                before.append((step, step.chosen))
                step.chosen = alternative
            yield
        finally:
            for step, winner in before:
                step.chosen = winner

    def steps_of(self, section: form.Section) -> list[Step]:
        return self.init if section is form.Section.INIT else self.forward

    def begin(self, section: form.Section) -> None:
        """Forgets what the last run left."""
        if section is form.Section.FORWARD:
            self.places.rebind({})

    @contextmanager
    def torch_memory(self) -> Iterator[None]:
        """Inside, torch's results and workspaces come from this program's own memory."""
        if self.is_capturing:  # a graph has memory of its own
            yield
            return
        with self.memory.used():
            yield

    def step(self, step: Step, *, is_checked: bool = False) -> None:
        """Runs one step. Raises as `run`."""
        self.progress.note(step.number)
        try:
            self._do(step, is_checked=is_checked)
            if is_checked:
                self.card.synchronize()
        except cuda.DriverError as error:
            raise failed(error, step) from error
        except (CannotRun, Faulted):
            raise
        except (BadResult, UnknownOperation) as error:
            raise CannotRun("operation", str(error), line=step.line) from error
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            if self.is_capturing and not isinstance(error, torch.OutOfMemoryError):
                raise CannotRun("capture", str(error).split("\n")[0], line=step.line) from error
            raise self._failed(error, step) from error

    def synchronize(self, step: Step | None = None) -> None:
        """Waits for the card. Raises as `run`, for `step` if it is known."""
        try:
            self.card.synchronize()
        except cuda.DriverError as error:
            raise failed(error, step) from error

    def _failed(self, error: Exception, step: Step) -> CannotRun | Faulted:
        """The exception for what torch raises: a lost context shows as a RuntimeError, too."""
        message = str(error).split("\n")[0][:500]
        if isinstance(error, torch.OutOfMemoryError):
            return CannotRun("out_of_memory", message, line=step.line)
        if loss := self.card.loss():
            return Faulted(loss, step=step)
        return CannotRun("operation", f"{step.what}: {message}", line=step.line)

    def _do(self, step: Step, *, is_checked: bool) -> None:
        match step.node:
            case form.Launch():
                self._launch(step)
            case form.Op() as op:
                kinds = [getattr(torch, self.program.tensors[n].dtype) for n in op.results]
                results = operations.call(
                    op, self.places.tensor, kinds=kinds, device=self.card.device
                )
                if len(results) < len(op.results):
                    words = f"{op.name} gives {len(results)} tensors, not {len(op.results)}"
                    raise CannotRun("result", words, line=step.line)
                for number, result in zip(op.results, results, strict=False):
                    self.places.bind(number, result)
            case form.Value() as value:
                if self.is_capturing:
                    raise CannotRun("value", "a value is read on the host", line=step.line)
                self.places.tensor(value.tensor).item()  # waits for the card, as the host does
            case form.Choice():
                for inner in self._chosen(step):
                    self.step(inner, is_checked=is_checked)

    def _chosen(self, step: Step) -> list[Step]:
        """The steps of a choice's winner; before there is one, of the first that can run."""
        if step.chosen is None:
            able = [n for n, steps in enumerate(step.alternatives) if not reason_of(steps)]
            if not able:
                reasons = [reason_of(steps) for steps in step.alternatives]
                words = f"no configuration fits: {'; '.join(reasons[:3])}"
                raise CannotRun("out_of_resources", words, line=step.line)
            step.chosen = able[0]
        return step.alternatives[step.chosen]

    def _launch(self, step: Step) -> None:
        if step.failure:
            raise CannotRun("out_of_resources", f"{step.kernel}: {step.failure}", line=step.line)
        assert isinstance(step.node, form.Launch)
        if 0 in step.node.grid:
            return
        packed, places = step.packed, self.places
        assert packed is not None
        assert step.config is not None
        tensors = self.program.tensors
        for one in packed.addresses:
            one.value.value = places.address(tensors[one.tensor].storage) + one.offset_bytes
        for one in packed.maps:
            tensor = tensors[one.tensor]
            start = tensor.offset * form.ITEM_BYTES[tensor.dtype]
            one.encode(places.address(tensor.storage) + start, self.driver)
        if step.scratch >= 0:
            packed.scratch.value = places.scratch_address(step.scratch)
        self.driver.launch(step.function, step.config, packed.pointers)

    def close(self) -> None:
        """Unloads its modules and unmaps its buffers. The card must be idle."""
        if self._places is not None:
            self._places.close()
            self._places = None
        for module in self._modules:
            self.driver.unload_module(module)
        self._modules.clear()

    # Loading.

    def _loaded(self, binary: Binary | Failure) -> tuple[int, Binary | None, str]:
        """(function, binary, reason of a failure)."""
        if isinstance(binary, Failure):
            return 0, None, binary.message
        try:
            module = self.driver.load_module(binary.code)
            self._modules.append(module)
            function = self.driver.function(module, binary.name)
            self.driver.allow_shared(function, binary.shared_bytes)
        except cuda.DriverError as error:
            if error.is_fault:
                raise
            return 0, binary, str(error)
        return function, binary, ""

    def _steps(self, nodes: Sequence[form.Node]) -> list[Step]:
        return [self._step(node) for node in nodes]

    def _step(self, node: form.Node) -> Step:
        self._num_steps += 1
        step = Step(number=self._num_steps, node=node)
        if isinstance(node, form.Choice):
            step.chosen = node.chosen
            step.alternatives = [self._steps(one.nodes) for one in node.alternatives]
        wrong = ops.misuse(node) if isinstance(node, form.Op) else None
        if wrong is not None:
            raise CannotRun("operation", wrong, line=node.line)
        if isinstance(node, form.Launch):
            try:
                self._prepare(step, node)
            except BadLaunch as error:
                raise CannotRun("launch", str(error), line=node.line) from error
        return step

    def _prepare(self, step: Step, launch: form.Launch) -> None:
        step.function, binary, step.failure = self._kernels[launch.kernel]
        step.kernel = self.program.kernels[launch.kernel].name
        if binary is None or step.failure:
            return
        step.packed = pack(self.program, launch, binary)
        finish(step.packed, self.driver.parameter_sizes(step.function))
        step.config = launch_config(launch, binary, stream=self.card.stream)
        if num_bytes := math.prod(launch.grid) * binary.global_scratch_bytes:
            step.scratch = len(self._scratch)
            self._scratch.append(num_bytes)


def reason_of(steps: Sequence[Step]) -> str:
    """First reason why an alternative cannot run, of its kernels; empty if it can."""
    for one in steps:
        if one.failure:
            return f"{one.kernel}: {one.failure}"
        if found := next(filter(None, map(reason_of, one.alternatives)), ""):
            return found
    return ""


def failed(error: cuda.DriverError, step: Step | None) -> CannotRun | Faulted:
    """The exception that a driver's refusal amounts to."""
    if error.is_fault:
        return Faulted(str(error), step=step)
    is_resource = error.code in (1, 2, 701, 720)
    line = step.line if step else 0
    return CannotRun("out_of_resources" if is_resource else "driver", str(error), line=line)


# --- arguments of a launch


HOST_TYPES = {8: 10, 9: 8, 10: 9}
"""Triton numbers the element types of a tensor map otherwise on the device than the driver does."""


class BadLaunch(Exception):
    """A launch whose arguments do not fit its kernel's binary."""


@dataclass(slots=True)
class Address:
    """A pointer parameter: set before each launch."""

    tensor: int
    offset_bytes: int
    value: ctypes.c_uint64 = field(default_factory=ctypes.c_uint64)


@dataclass(slots=True)
class Mapped:
    """A tensor map parameter: encoded anew when its tensor moves."""

    tensor: int
    spec: cuda.MapSpec
    value: cuda.TensorMap
    buffer: Any
    """Holds the memory of `value`."""
    address: int = 0

    def encode(self, address: int, driver: cuda.Driver) -> None:
        """Encodes it unless it is current."""
        if self.address != address:
            driver.encode_map(self.spec, address=address, target=self.value)
            self.address = address


@dataclass(slots=True)
class Packed:
    """Arguments of a launch in the driver's form."""

    pointers: Any = None
    """Array of `void *`, one for each parameter of the binary."""
    values: list[Any] = field(default_factory=list[Any])
    """Memory that `pointers` refers to."""
    addresses: list[Address] = field(default_factory=list[Address])
    maps: list[Mapped] = field(default_factory=list[Mapped])
    scratch: ctypes.c_uint64 = field(default_factory=ctypes.c_uint64)

    def sizes(self) -> tuple[int, ...]:
        return tuple(ctypes.sizeof(value) for value in self.values)

    def add_address(self, program: form.Program, number: int) -> None:
        tensor = program.tensors[number]
        self.addresses.append(Address(number, tensor.offset * form.ITEM_BYTES[tensor.dtype]))
        self.values.append(self.addresses[-1].value)


def pack(program: form.Program, launch: form.Launch, binary: Binary) -> Packed:
    """Raises BadLaunch for a binary with other tensor maps. Arguments of a program that was parsed
    fit the kernel's parameters."""
    parameters = program.kernels[launch.kernel].parameters
    packed = Packed()
    for parameter, argument in zip(parameters, launch.arguments, strict=True):
        if isinstance(argument, form.Descriptor):
            _add_descriptor(packed, program, argument, binary.tensor_maps)
        elif isinstance(argument, form.TensorUse):
            packed.add_address(program, argument.tensor)
        elif argument is None:
            packed.values.append(ctypes.c_uint64())
        else:
            data = form.pack(parameter.type, argument)
            packed.values.append((ctypes.c_ubyte * len(data))(*data))
    packed.values += [packed.scratch, ctypes.c_uint64()]
    return packed


def finish(packed: Packed, sizes: Sequence[int] | None) -> None:
    """Builds the pointers. Raises BadLaunch where the binary's parameters are of other sizes; it
    may have fewer or more trailing scratch addresses."""
    if sizes is not None:
        own = packed.sizes()
        num = len(own) - 2
        if tuple(sizes[:num]) != own[:num] or any(one != 8 for one in sizes[num:]):
            raise BadLaunch(f"parameters of {list(own[:num])} bytes for a kernel of {list(sizes)}")
        packed.values[len(sizes) :] = []
        packed.values += [ctypes.c_uint64() for _ in range(len(sizes) - len(packed.values))]
    at = [ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in packed.values]
    packed.pointers = (ctypes.c_void_p * max(len(at), 1))(*at)


def launch_config(launch: form.Launch, binary: Binary, *, stream: int) -> cuda.LaunchConfig:
    """The driver's structure for a launch without attributes."""
    warp_size = int(binary.target.rsplit(":", 1)[1])  # 32 of `cuda:90:32`
    return cuda.LaunchConfig(
        grid=(ctypes.c_uint * 3)(*launch.grid),
        block=(ctypes.c_uint * 3)(binary.num_warps * warp_size, 1, 1),
        shared_bytes=binary.shared_bytes,
        stream=stream,
    )


def map_spec(descriptor: form.Descriptor, *, dtype: str, facts: MapFacts) -> cuda.MapSpec:
    """Parameters of a descriptor's tensor map. Raises BadLaunch."""
    if len(facts.block_size) != len(descriptor.shape):
        raise BadLaunch(f"a descriptor of {len(descriptor.shape)} dimensions")
    if facts.elem_size != form.ITEM_BYTES[dtype]:
        raise BadLaunch(f"a descriptor of {facts.elem_size}-byte elements over {dtype}")
    shape = list(descriptor.shape)
    if facts.fp4_padded:
        shape[-1] *= 2
    strides = [facts.elem_size * stride for stride in descriptor.strides[:-1]]
    return cuda.MapSpec(
        data_type=HOST_TYPES.get(facts.elem_type, facts.elem_type),
        shape=tuple(reversed(shape)),
        stride_bytes=tuple(reversed(strides)),
        box=tuple(reversed(facts.block_size)),
        swizzle=facts.swizzle,
        is_nan_filled=descriptor.padding == "nan",
    )


def _add_descriptor(
    packed: Packed, program: form.Program, descriptor: form.Descriptor, facts: Sequence[MapFacts]
) -> None:
    """A tensor map, by its facts in the binary; without such base, sizes and padding."""
    if not facts:
        packed.add_address(program, descriptor.tensor)
        sizes = (*descriptor.shape, *descriptor.strides)
        packed.values += [ctypes.c_int64(size) for size in sizes]
        packed.values.append(ctypes.c_int8(descriptor.padding == "nan"))
        return
    if len(packed.maps) >= len(facts):
        raise BadLaunch(f"the kernel has {len(facts)} descriptors")
    dtype = program.tensors[descriptor.tensor].dtype
    spec = map_spec(descriptor, dtype=dtype, facts=facts[len(packed.maps)])
    packed.maps.append(Mapped(descriptor.tensor, spec, *cuda.aligned_map()))
    packed.values.append(packed.maps[-1].value)
