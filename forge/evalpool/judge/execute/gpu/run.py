"""A loaded program: its modules, its steps, one run of them on the executor's stream.

Used by `child.py` and `timing.py`. A run follows the program's nodes: launches by
the driver, operations by torch. Everything that a launch needs but addresses is made at load.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.compiler.binary import Binary, Failure
from forge.evalpool.judge.driver.driver import DriverError, LaunchConfig
from forge.evalpool.judge.execute import operations
from forge.evalpool.judge.execute.call import PROGRESS, what_of
from forge.evalpool.judge.execute.gpu import arguments
from forge.evalpool.judge.execute.gpu.arguments import BadLaunch, Packed
from forge.evalpool.judge.execute.gpu.places import BadResult, Places, find_residency
from forge.evalpool.judge.execute.operations import UnknownOperation
from forge.evalpool.judge.program import ops
from forge.evalpool.judge.program.format import Choice, Launch, Node, Op, Program, Section, Value

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator, Sequence

    from forge.evalpool.judge.execute.gpu.card import Card


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
    node: Node
    kernel: str = ""
    """Name of the kernel of a launch."""
    function: int = 0
    packed: Packed | None = None
    config: LaunchConfig | None = None
    scratch: int = -1
    """Number of its scratch buffer; -1 without one."""
    failure: str = ""
    """Reason why its kernel cannot be launched on this card; empty if it can."""
    alternatives: list[list[Step]] = field(default_factory=list["list[Step]"])
    chosen: int | None = None
    """Alternative of a choice that runs."""

    @property
    def line(self) -> int:
        """Line of the candidate's source; 0 if unknown."""
        return self.node.line

    @property
    def what(self) -> str:
        """The step in words."""
        return what_of(self.node, kernel=self.kernel)


class Progress:
    """Writes the number of the step that runs where the judge can read it."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def note(self, number: int) -> None:
        """Writes the number of the step that runs, where the judge can read it."""
        PROGRESS.pack_into(self._memory, 0, number)


class Loaded:
    """One program with its modules loaded and its buffers mapped."""

    def __init__(
        self,
        program: Program,
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
            self.init = self._steps(program.init)
            self.forward = self._steps(program.forward)
            self._places = Places(program, self.residency, card=card, scratch=self._scratch)
        except DriverError as error:
            self.close()
            reason = "out_of_memory" if error.code == 2 else "driver"
            raise CannotRun(reason, str(error)) from error
        except BaseException:
            self.close()
            raise

    @property
    def places(self) -> Places:
        """The places of its storages; set once it is placed."""
        assert self._places is not None
        return self._places

    def run(self, section: Section, *, is_checked: bool = False) -> None:
        """Runs a section in the current stream.

        Args:
            is_checked: waits after each step, so that a fault is found at its step.

        Raises:
            CannotRun: the program is at fault or not for this card; the context is sound.
            Faulted: the context is lost.
        """
        self.begin(section)
        with self.torch_memory():
            for position, step in enumerate(self.steps_of(section)):
                self.step(step, is_checked=is_checked)
                if section is Section.FORWARD and self.places.is_direct:
                    for storage in self.residency.ends.get(position, ()):
                        self.places.forget(storage)

    @contextmanager
    def chosen(self, choices: Sequence[tuple[int, int]]) -> Iterator[None]:
        """Inside, alternatives run in place of winners. Raises CannotRun where there is none of
        that number."""
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

    def steps_of(self, section: Section) -> list[Step]:
        """The steps of a section, in order."""
        return self.init if section is Section.INIT else self.forward

    def begin(self, section: Section) -> None:
        """Forgets what the last run left."""
        if section is Section.FORWARD:
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
        except DriverError as error:
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
        except DriverError as error:
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
            case Launch():
                self._launch(step)
            case Op() as op:
                kinds = [getattr(torch, self.program.tensors[n].dtype) for n in op.results]
                results = operations.call(
                    op, self.places.tensor, kinds=kinds, device=self.card.device
                )
                if len(results) < len(op.results):
                    words = f"{op.name} gives {len(results)} tensors, not {len(op.results)}"
                    raise CannotRun("result", words, line=step.line)
                for number, result in zip(op.results, results, strict=False):
                    self.places.bind(number, result)
            case Value() as value:
                if self.is_capturing:
                    raise CannotRun("value", "a value is read on the host", line=step.line)
                self.places.tensor(value.tensor).item()  # waits for the card, as the host does
            case Choice():
                for inner in self._chosen(step):
                    self.step(inner, is_checked=is_checked)

    def _chosen(self, step: Step) -> list[Step]:
        """The steps of a choice's winner; before there is one, of the first that can run."""
        if step.chosen is None:
            able = [n for n, steps in enumerate(step.alternatives) if can_run(steps)]
            if not able:
                reasons = [reason_of(steps) for steps in step.alternatives]
                words = f"no configuration fits: {'; '.join(reasons[:3])}"
                raise CannotRun("out_of_resources", words, line=step.line)
            step.chosen = able[0]
        return step.alternatives[step.chosen]

    def _launch(self, step: Step) -> None:
        if step.failure:
            raise CannotRun("out_of_resources", f"{step.kernel}: {step.failure}", line=step.line)
        assert isinstance(step.node, Launch)
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
            start = tensor.offset * arguments.ITEM_BYTES[tensor.dtype]
            packed.encode(one, places.address(tensor.storage) + start, self.driver)
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
        except DriverError as error:
            if error.is_fault:
                raise
            return 0, binary, str(error)
        return function, binary, ""

    def _steps(self, nodes: Sequence[Node]) -> list[Step]:
        return [self._step(node) for node in nodes]

    def _step(self, node: Node) -> Step:
        self._num_steps += 1
        step = Step(number=self._num_steps, node=node)
        if isinstance(node, Choice):
            step.chosen = node.chosen
            step.alternatives = [self._steps(one.nodes) for one in node.alternatives]
        wrong = ops.misuse(node) if isinstance(node, Op) else None
        if wrong is not None:
            raise CannotRun("operation", wrong, line=node.line)
        if isinstance(node, Launch):
            try:
                self._prepare(step, node)
            except BadLaunch as error:
                raise CannotRun("launch", str(error), line=node.line) from error
        return step

    def _prepare(self, step: Step, launch: Launch) -> None:
        step.function, binary, step.failure = self._kernels[launch.kernel]
        step.kernel = self.program.kernels[launch.kernel].name
        if binary is None or step.failure:
            return
        step.packed = arguments.pack(self.program, launch, binary)
        arguments.finish(step.packed, self.driver.parameter_sizes(step.function))
        step.config = arguments.launch_config(launch, binary, stream=self.card.stream)
        if num_bytes := arguments.scratch_bytes(launch, binary):
            step.scratch = len(self._scratch)
            self._scratch.append(num_bytes)


def can_run(steps: Sequence[Step]) -> bool:
    """True if every kernel of an alternative was compiled and loaded."""
    return not reason_of(steps)


def reason_of(steps: Sequence[Step]) -> str:
    """First reason why an alternative cannot run; empty if it can."""
    found: list[Step] = []
    _collect(steps, found)
    return next((f"{one.kernel}: {one.failure}" for one in found if one.failure), "")


def failed(error: DriverError, step: Step | None) -> CannotRun | Faulted:
    """The exception that a driver's refusal amounts to."""
    if error.is_fault:
        return Faulted(str(error), step=step)
    is_resource = error.code in (1, 2, 701, 720)
    line = step.line if step else 0
    return CannotRun("out_of_resources" if is_resource else "driver", str(error), line=line)


def _collect(steps: Sequence[Step], found: list[Step]) -> None:
    for step in steps:
        found.append(step)
        for alternative in step.alternatives:
            _collect(alternative, found)
