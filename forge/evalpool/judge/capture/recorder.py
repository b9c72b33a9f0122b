"""Records what host code does on the made-up card: storages, tensors, operations, launches.

One recorder lives for one capture. As a dispatch mode it sees each aten operation: those on CPU
tensors run as they are; those on the card run on fake tensors and become nodes. A host read asks
the judge for its value (`exchange.Asking`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from forge.evalpool.judge.capture.building import Parts
from forge.evalpool.judge.capture.exchange import Asking, Unsupported, current_line
from forge.evalpool.judge.numbers.called import leaves
from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program import limits
from forge.evalpool.judge.program.questions import MAX_VALUES

aten = torch.ops.aten

FIRST_ADDRESS = 0x7F0000000000
ALIGNMENT = 512
"""Bytes: torch's allocator aligns its blocks so, and Triton specialises on the address."""

ALLOCATIONS = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_strided", "empty_like", "empty_permuted"),
        *("new_empty", "new_empty_strided"),
    )
)
"""Operations without a node: their result is an uninitialised storage."""
TORCH = frozenset({"aten", "prim", "prims", "profiler", "inductor", "_c10d_functional"})
"""Namespaces of torch's own operations."""
RESHAPES = frozenset(
    f"aten::{name}_"
    for name in (
        *("squeeze", "unsqueeze", "transpose", "t", "swapaxes", "swapdims", "as_strided"),
        "detach",
    )
)
"""Operations in place that change a tensor's shape and no element."""
REFUSED = {
    "aten::set_": "keep tensors over the storage that they were made with",
    "aten::resize_": "allocate a tensor of the final size",
}


class Recorder(TorchDispatchMode):
    def __init__(self, *, fake: Any, file: str, asking: Asking) -> None:
        super().__init__()
        self.fake = fake
        self.file = file
        self.asking = asking
        self.nodes: list[form.Node] = []
        """Nodes of the section that is being recorded; the session swaps the list."""
        self.section = form.Section.INIT
        """Section that new allocations belong to."""
        self.storages: list[form.Storage] = []
        self.tensors: list[form.Tensor] = []
        self.kernels: list[form.Kernel] = []
        self.constants: list[bytes] = []
        self.parts = Parts(
            storages=self.storages, tensors=self.tensors, kernels=self.kernels,
            constants=self.constants,
        )  # fmt: skip
        self._held: list[Any] = []
        self._addresses: list[int] = []
        self._next_address = FIRST_ADDRESS
        self._input_addresses: dict[int, int] = {}
        """By the position of an input: each call finds it there, as in memory that is freed and
        taken again."""
        self._storage_numbers: dict[int, int] = {}
        """By the address of torch's storage, which `_held` keeps alive."""
        self._tensor_numbers: dict[form.Tensor, int] = {}
        self._kernel_numbers: dict[form.Kernel, int] = {}
        self._constants: dict[tuple[torch.dtype, bytes], Any] = {}
        self._constant_bytes = 0
        self._num_nodes = 0
        self._ttir_bytes = 0
        self._has_drawn = False
        """True if the host may read what a constructor has drawn, or what nothing has written."""
        self._new_on_host: list[Any] = []
        """Storages of tensors of the host that this call has made."""
        self._made = set[int]()
        """Identities of tensors that this call has made on the card."""
        self.num_turned = 0
        """Operations that gave another shape to a tensor that was there before."""

    # Tensors of the program

    def given(self, shape: Any, dtype: torch.dtype, **facts: Any) -> Any:
        """A tensor on the card whose content the judge supplies, or that is a constant; `facts` are
        those of its storage."""
        tensor = FakeTensor(self.fake, torch.empty(shape, dtype=dtype, device="meta"), CARD)
        num_bytes = math.prod(shape) * dtype.itemsize
        self._add_storage(tensor, form.Storage(num_bytes=num_bytes, **facts))
        return tensor

    def storage_of(self, tensor: Any) -> int:
        """Number of the tensor's storage. One seen for the first time is an allocation."""
        storage = tensor.untyped_storage()
        number = self._storage_numbers.get(storage._cdata)
        if number is None:
            facts: Any = {"origin": form.Origin.ALLOCATION, "section": self.section}
            number = self._add_storage(tensor, form.Storage(num_bytes=storage.nbytes(), **facts))
        return number

    def is_known(self, tensor: Any) -> bool:
        return tensor.untyped_storage()._cdata in self._storage_numbers

    def tensor(self, tensor: Any) -> int:
        if tensor.is_conj() or tensor.is_neg():
            raise Unsupported("a lazily conjugated tensor: call resolve_conj() or resolve_neg()")
        if tensor.layout is not torch.strided:
            raise Unsupported("a sparse tensor: use strided tensors")
        record = form.Tensor(
            storage=self.storage_of(tensor),
            offset=tensor.storage_offset(),
            shape=tuple(tensor.shape),
            strides=tuple(tensor.stride()),
            dtype=str(tensor.dtype).removeprefix("torch."),
        )
        number = self._tensor_numbers.get(record)
        if number is None:
            number = self._tensor_numbers[record] = len(self.tensors)
            self.tensors.append(record)
        return number

    def address(self, tensor: Any) -> int:
        """Made-up address of the tensor's first element: aligned, unique in a call, never read."""
        if not tensor.numel():
            return 0
        base = self._addresses[self.storage_of(tensor)]
        return base + tensor.storage_offset() * tensor.element_size()

    def constant(self, tensor: torch.Tensor) -> Any:
        """A CPU tensor as a constant on the card; equal ones share a storage, which nothing
        writes to."""
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        if plain.nbytes > limits.MAX_CONSTANT_BYTES - self._constant_bytes:
            raise Unsupported(
                f"more than {limits.MAX_CONSTANT_BYTES >> 20} MB of constants made on the host:"
                " make them with a kernel or a torch function on the device"
            )
        content = plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        key = (plain.dtype, content)
        if key not in self._constants:
            self._constant_bytes += len(content)
            self._constants[key] = self.given(
                [plain.numel()], plain.dtype, origin=form.Origin.CONSTANT, index=len(self.constants)
            )
            self.constants.append(content)
        with self.fake:
            return self._constants[key].view(plain.shape)

    def _add_storage(self, tensor: Any, storage: form.Storage) -> int:
        number = len(self.storages)
        held = tensor.untyped_storage()
        self._storage_numbers[held._cdata] = number
        self._held.append(held)
        self.storages.append(storage)
        address = self._next_address
        if storage.origin is form.Origin.INPUT:
            address = self._input_addresses.setdefault(storage.index, address)
        self._addresses.append(address)
        size = held.nbytes() + ALIGNMENT
        self._next_address += -(-size // ALIGNMENT) * ALIGNMENT
        return number

    # Nodes

    def line(self) -> int:
        """Line of the candidate that is being executed."""
        return current_line(self.file)

    def begin_call(self, nodes: list[form.Node]) -> None:
        """Records another call of forward, in this list."""
        self.nodes, self._num_nodes = nodes, 0
        self._new_on_host, self._made = [], set()

    def add(self, node: form.Node) -> None:
        """Appends a node. Raises Unsupported."""
        self._num_nodes += 1
        if self._num_nodes > 2 * limits.MAX_NODES:  # forward is captured twice
            raise Unsupported(f"more than {limits.MAX_NODES} launches and operations")
        self.nodes.append(node)

    def kernel(self, kernel: form.Kernel) -> int:
        """Number of a kernel; equal ones share it. Raises Unsupported."""
        number = self._kernel_numbers.get(kernel)
        if number is None:
            self._ttir_bytes += len(kernel.ttir)
            if self._ttir_bytes > limits.MAX_TTIR_BYTES:
                raise Unsupported(f"more than {limits.MAX_TTIR_BYTES >> 20} MB of TTIR")
            number = self._kernel_numbers[kernel] = len(self.kernels)
            self.kernels.append(kernel)
        return number

    @contextmanager
    def aside(self) -> Iterator[list[form.Node]]:
        """Within, nodes go to a list of their own."""
        before, self.nodes = self.nodes, []
        try:
            yield self.nodes
        finally:
            self.nodes = before

    # Operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        whole = kwargs
        device = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        is_to_card = device is not None and device.type == "cuda"
        if is_to_card:
            if device is not None and (device.index or 0) >= torch.cuda.device_count():
                raise RuntimeError(f"CUDA error: invalid device ordinal: {device}; there is 1")
            kwargs = {**kwargs, "device": CARD}
        is_on_card = any(isinstance(one, FakeTensor) for one in leaves([args, kwargs]))
        if not is_to_card and not is_on_card:
            return self._run_on_host(func, args, kwargs)
        if func.namespace not in TORCH:  # the candidate's own, whose fake form no card runs
            name = ".".join(filter(None, (func._schema.name, func._schema.overload_name)))
            if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CUDA"):
                raise NotImplementedError(f"{name} has no kernel for CUDA")
            with self:
                cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
                return func.redispatch(cuda, *args, **kwargs)
        if (special := SPECIAL.get(func)) is not None:
            return special(self, func, args, kwargs)
        if func.namespace == "aten" and torch.is_inference_mode_enabled():  # left to us
            with self:
                parts = func.decompose(*args, **whole)
            if parts is not NotImplemented:
                return parts
        return self.run(func, args, kwargs)

    def _run_on_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operation on tensors of the host, of which a call changes none that lasts: it
        could count calls there; nor does it draw numbers there."""
        if func is aten._pin_memory.default:
            return args[0]
        result, kinds = func(*args, **kwargs), func._schema.arguments
        is_call = self.section is form.Section.FORWARD
        is_drawn = torch.Tag.nondeterministic_seeded in func.tags
        is_read = self._has_drawn and func is aten._local_scalar_dense.default
        if is_read or (is_drawn and is_call):
            raise Unsupported(f"{func} on the host: another process has other numbers there")
        is_found = is_call and func._schema.name in ALLOCATIONS and result.is_cpu
        self._has_drawn |= is_drawn or is_found
        if func._schema.is_mutable:
            named = dict(zip((one.name for one in kinds), args, strict=False)) | kwargs
            written = [one.name for one in kinds if one.alias_info is not None]
            self.require_new(named[one] for one in written if one in named)
        known = {one.untyped_storage()._cdata for one in leaves([args, kwargs])}
        made = (one.untyped_storage() for one in leaves(result))
        self._new_on_host += (one for one in made if one._cdata not in known)
        return result

    def require_new(self, tensors: Iterable[torch.Tensor]) -> None:
        """Raises Unsupported for a tensor of the host that an earlier call may have seen."""
        if self.section is form.Section.FORWARD:
            known = {one._cdata for one in self._new_on_host}
            if any(one.untyped_storage()._cdata not in known for one in leaves([*tensors])):
                raise Unsupported("a tensor of the host that is kept and changed: compute it anew")

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operation on fake tensors and records it."""
        name = func._schema.name
        if name == "aten::record_stream":
            return None
        if name in REFUSED:
            raise Unsupported(f"{func}: {REFUSED[name]}")
        inputs = [one for one in leaves([args, kwargs]) if isinstance(one, FakeTensor)]
        for one in inputs:
            self.storage_of(one)
        is_turned = torch.Tag.inplace_view in func.tags
        self.num_turned += is_turned and id(inputs[0]) not in self._made
        try:
            with self.fake:
                result = func(*args, **kwargs)
        except (
            fake_tensor.DataDependentOutputException,
            fake_tensor.DynamicOutputShapeException,
        ) as error:
            raise Unsupported(
                f"{func}: the result depends on data that only the device has;"
                " keep shapes independent of the content of tensors"
            ) from error
        except fake_tensor.UnsupportedOperatorException as error:  # no rule for its result's shape
            decomposition = decomposition_table.get(func)
            if decomposition is None:
                words = f"{func}: its result's shape is unknown before it runs"
                raise Unsupported(words) from error
            with self:
                return decomposition(*args, **kwargs)
        made = [one for one in leaves(result) if isinstance(one, FakeTensor)]
        self._made |= set[int]() if func._schema.is_mutable else set(map(id, made))
        is_view = not func._schema.is_mutable and all(map(self.is_known, made))
        if is_view or name in ALLOCATIONS or name in RESHAPES:
            for one in made:
                self.storage_of(one)
        else:
            self.add_op(func, args, kwargs, made)
        return result

    def add_op(self, func: Any, args: Any, kwargs: Any, made: list[Any]) -> None:
        """Appends the node of an operation with these results."""
        named = {n: one for n, one in kwargs.items() if n not in ("device", "generator")}
        node = form.Op(
            name=str(func),
            arguments=tuple(map(self._literal, args)),
            keywords={name: self._literal(one) for name, one in named.items()},
            results=tuple(map(self.tensor, made)),
            line=self.line(),
        )
        self.add(node)

    def _literal(self, value: Any) -> form.Literal:
        if isinstance(value, FakeTensor):
            return form.TensorUse(tensor=self.tensor(value))
        if isinstance(value, torch.Tensor):
            return form.TensorUse(tensor=self.tensor(self.constant(value)))
        if isinstance(value, list | tuple):
            return tuple(self._literal(one) for one in value)
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            kind = type(value).__name__
            return form.NamedConstant(kind=kind, name=str(value).removeprefix("torch."))
        if isinstance(value, torch.device | torch.Generator):
            return None
        if value is None or isinstance(value, bool | int | float | str):
            return math.nan if value != value else value  # the same NaN equals itself in a tuple
        raise Unsupported(f"a {type(value).__name__} as an argument of a torch operation")

    # Host reads

    def read(self, tensors: list[int]) -> list[form.Scalar]:
        """Values of tensors with one element each, from the judge. Raises Unsupported."""
        dtypes = [self.tensors[number].dtype for number in tensors]
        answers = self.asking.values(tensors, dtypes=dtypes)
        line = self.line()
        for number, answer in zip(tensors, answers, strict=True):
            self.add(form.Value(tensor=number, answer=answer, line=line))
        return answers

    def fetch(self, tensor: Any) -> torch.Tensor:
        """A CPU copy of a tensor on the card. Raises Unsupported for more than a few elements."""
        numbers = [self.tensor(one) for one in elements(tensor)]
        values = self.read(numbers)
        return torch.tensor(values, dtype=tensor.dtype).view(tensor.shape)


def elements(tensor: Any) -> Iterator[Any]:
    """Views of a tensor's elements, in row-major order."""
    if tensor.numel() > MAX_VALUES:
        raise Unsupported(
            f"a copy of {tensor.numel()} elements to the host: compute on the device; at most"
            f" {MAX_VALUES} values of a call may be read"
        )
    strides = tensor.stride()
    for position in range(tensor.numel()):
        offset, left = tensor.storage_offset(), position
        for size, stride in zip(reversed(tensor.shape), reversed(strides), strict=True):
            left, index = divmod(left, size)
            offset += index * stride
        yield tensor.as_strided((), (), offset)


CARD = torch.device("cuda", 0)


def _scalar(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    return recorder.read([recorder.tensor(args[0])])[0]


def _to_copy(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """`.to()` between the host and the card, or on the card."""
    source, device = args[0], kwargs.get("device")
    if not isinstance(source, FakeTensor):  # to the card
        cast = {name: value for name, value in kwargs.items() if name == "dtype"}
        content = source.to(**cast) if cast else source
        with recorder.fake:
            result = aten.empty_like.default(content, device=CARD)
        recorder.storage_of(result)
        return _copy(recorder, aten.copy_.default, (result, content), {})
    if device is not None and torch.device(device).type == "cpu":
        fetched = recorder.fetch(source)
        return fetched.to(kwargs.get("dtype") or fetched.dtype)
    return recorder.run(func, args, kwargs)


def _copy(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """`copy_`, which may lie between the host and the card."""
    target, source = args[0], args[1]
    if not isinstance(target, FakeTensor):
        recorder.require_new([target])
        return target.copy_(recorder.fetch(source))
    if not isinstance(source, FakeTensor):
        source = recorder.constant(source)
    return recorder.run(func, (target, source), {})


def _equal(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """`torch.equal`: one value that the judge reads."""
    if args[0].shape != args[1].shape:
        return False
    same = recorder.run(aten.eq.Tensor, args, {})
    return bool(_scalar(recorder, None, (recorder.run(aten.all.default, (same,), {}),), {}))


def _nonzero(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """`nonzero`: the number of rows is a value that the judge reads."""
    tensor = args[0]
    count = recorder.run(aten.count_nonzero.default, (tensor,), {})
    rows = int(_scalar(recorder, None, (count,), {}))
    with recorder.fake:
        result = aten.empty.memory_format([rows, tensor.dim()], dtype=torch.int64, device=CARD)
    recorder.add_op(func, args, {}, [result])
    return result


def _index(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """`x[mask]`: masks become the positions where they are set."""
    indices: list[Any] = []
    for one in args[1]:
        if isinstance(one, FakeTensor) and one.dtype in (torch.bool, torch.uint8):
            found = _nonzero(recorder, aten.nonzero.default, (one,), {})
            indices += (recorder.run(aten.select.int, (found, 1, i), {}) for i in range(one.dim()))
        else:
            indices.append(one)
    return recorder.run(func, (args[0], indices), kwargs)


def _masked_select(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    tensor, mask = (recorder.run(aten.expand.default, (one, shape), {}) for one in args)
    return _index(recorder, aten.index.Tensor, (tensor, [mask]), {})


def _gru_cell(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """The fused cell of a GRU, which has no rule for fake tensors, by its parts."""
    gates_x, gates_h, hidden, *biases = args
    with recorder:
        if biases and biases[0] is not None:
            gates_x, gates_h = gates_x + biases[0], gates_h + biases[1]
        (xr, xz, xn), (hr, hz, hn) = gates_x.chunk(3, 1), gates_h.chunk(3, 1)
        update = torch.sigmoid(xz + hz)
        new = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
        result = new + update * (hidden - new)
        return result, torch.empty_like(result)  # the second is for the backward pass


SPECIAL: dict[Any, Any] = {
    aten._local_scalar_dense.default: _scalar,
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy,
    aten.lift_fresh.default: lambda recorder, func, args, kwargs: args[0],
    aten.equal.default: _equal,
    aten.nonzero.default: _nonzero,
    aten.index.Tensor: _index,
    aten.masked_select.default: _masked_select,
    aten._thnn_fused_gru_cell.default: _gru_cell,
}
"""Operations that move data between the host and the card, or whose size depends on data."""
