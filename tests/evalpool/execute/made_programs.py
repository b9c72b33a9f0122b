"""Programs made by hand, compiled by Triton itself, for the executor's tests and benchmarks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forge.evalpool.judge.capture.lowering import parameters
from forge.evalpool.judge.compiler.binary import Binary, Failure, TensorMap
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import (
    ITEM_BYTES,
    Kernel,
    Launch,
    Node,
    Options,
    Origin,
    Parameter,
    Program,
    Section,
    Storage,
    Tensor,
    TensorUse,
)


@dataclass(slots=True)
class Made:
    """A program being made: its parts in order."""

    storages: list[Storage] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    binaries: list[Binary | Failure] = field(default_factory=list)
    init: list[Node] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: list[bytes] = field(default_factory=list)

    def tensor(
        self,
        shape: Sequence[int],
        dtype: str = "float32",
        *,
        origin: Origin = Origin.ALLOCATION,
        name: str = "",
        section: Section = Section.FORWARD,
        constant: bytes = b"",
    ) -> int:
        """A contiguous tensor with a storage of its own."""
        num = 1
        strides = []
        for size in reversed(shape):
            strides.insert(0, num)
            num *= size
        index = sum(one.origin is origin for one in self.storages)
        if origin is Origin.CONSTANT:
            self.constants.append(constant)
        elif origin is not Origin.INPUT:
            index = 0
        self.storages.append(
            Storage(
                num_bytes=num * ITEM_BYTES[dtype],
                origin=origin,
                name=name,
                index=index,
                section=section,
            )
        )
        return self.view(len(self.storages) - 1, shape, tuple(strides), dtype)

    def view(
        self,
        storage: int,
        shape: Sequence[int],
        strides: Sequence[int],
        dtype: str,
        offset: int = 0,
    ) -> int:
        self.tensors.append(
            Tensor(
                storage=storage,
                offset=offset,
                shape=tuple(shape),
                strides=tuple(strides),
                dtype=dtype,
            )
        )
        return len(self.tensors) - 1

    def input(self, shape: Sequence[int], dtype: str = "float32") -> int:
        return self.tensor(shape, dtype, origin=Origin.INPUT)

    def kernel(
        self,
        function: Any,
        types: Mapping[str, str],
        constants: Mapping[str, Any],
        *,
        options: Options | None = None,
        even: Sequence[str] = (),
        target: Any = None,
    ) -> int:
        """Compiles a kernel; pointers and the integers in `even` are multiples of 16."""
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource, compile

        chosen = options or Options()
        given = {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
        signature = dict(types) | dict.fromkeys(constants, "constexpr")
        names = list(function.arg_names)
        attributes = {
            (names.index(name),): [["tt.divisibility", 16]]
            for name, kind in types.items()
            if kind.startswith("*") or name in even
        }
        source = ASTSource(
            fn=function,
            signature={name: signature[name] for name in names},
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs=attributes,
        )
        compiled = compile(source, target=target or GPUTarget("cuda", 90, 32), options=given)
        self.binaries.append(binary_of(compiled))
        self.kernels.append(
            Kernel(
                name=compiled.metadata.name,
                ttir=compiled.asm["ttir"],
                options=chosen,
                parameters=tuple(parameters(dict(types))),
            )
        )
        return len(self.kernels) - 1

    def launch(self, kernel: int, grid: tuple[int, int, int], *arguments: Any) -> Launch:
        return Launch(kernel=kernel, grid=grid, arguments=arguments, line=10 + len(self.nodes))

    def done(self, *outputs: int) -> Program:
        return Program(
            target="cuda:90:32",
            storages=tuple(self.storages),
            tensors=tuple(self.tensors),
            kernels=tuple(self.kernels),
            init=tuple(self.init),
            forward=tuple(self.nodes),
            outputs=outputs,
            returned="tensor" if len(outputs) == 1 else "tuple",
            constants=tuple(self.constants),
        )


def binary_of(compiled: Any) -> Binary:
    """The binary of a kernel that Triton compiled."""
    meta = compiled.metadata
    facts = getattr(meta, "tensordesc_meta", None) or []
    names = ("swizzle", "elem_size", "elem_type", "block_size", "fp4_padded")
    maps = [TensorMap(**{name: _hashable(one[name]) for name in names}) for one in facts]
    return Binary(
        key="0" * 64,
        target="cuda:90:32",
        name=meta.name,
        code=compiled.asm["cubin"],
        shared_bytes=meta.shared,
        num_warps=meta.num_warps,
        global_scratch_bytes=meta.global_scratch_size,
        tensor_maps=tuple(maps),
        tensor_memory=0,
        num_registers=0,
        num_spills=0,
    )


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def use(tensor: int) -> TensorUse:
    return TensorUse(tensor=tensor)


def data_of(program: Program) -> bytes:
    """Its bytes, which the judge would accept."""
    data = wire.dumps(program)
    assert wire.loads(data) == program
    return data


COPY = """
module {
  tt.func public @copy(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %n: i32) attributes {noinline = false} {
    %c64 = arith.constant 64 : i32
    %pid = tt.get_program_id x : i32
    %base = arith.muli %pid, %c64 : i32
    %lane = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %0 = tt.splat %base : i32 -> tensor<64xi32>
    %i = arith.addi %0, %lane : tensor<64xi32>
    %1 = tt.splat %n : i32 -> tensor<64xi32>
    %mask = arith.cmpi slt, %i, %1 : tensor<64xi32>
    %2 = tt.splat %x : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %3 = tt.addptr %2, %i : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %4 = tt.load %3, %mask : tensor<64x!tt.ptr<f32>>
    %5 = tt.splat %y : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %6 = tt.addptr %5, %i : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    tt.store %6, %4, %mask : tensor<64x!tt.ptr<f32>>
    tt.return
  }
}
"""
"""Copies `n` elements, 64 by each instance."""


REQUEST = {
    "num_bytes": 2048,
    "tensors": [["float32", [256], 0], ["float32", [256], 1024]],
    "state": [],
    "init": ["list", []],
    "sets": [["list", [["tensor", 0]]]],
    "slots": [1],
}
"""An input and a slot of 256 floats."""


def copy_kernel() -> Kernel:
    """`COPY` as a kernel whose operations are at lines 100, 101, ..."""
    kinds = {"x": "*fp32", "y": "*fp32", "n": "i32"}
    return Kernel(
        name="copy",
        ttir=COPY,
        options=Options(),
        parameters=tuple(Parameter(name=name, type=kind) for name, kind in kinds.items()),
        lines=tuple(range(100, 118)),
    )


def launch(n: int, *, source: int = 0, target: int = 1, size: int = 256) -> Launch:
    """A launch of `copy` over `size` elements, `n` of which are unmasked."""
    uses = (TensorUse(tensor=source), TensorUse(tensor=target))
    return Launch(kernel=0, grid=(-(-size // 64), 1, 1), arguments=(*uses, n), line=7)


def program(*nodes: Any, num_temporaries: int = 0, size: int = 256, **more: Any) -> Program:
    """An input (tensor 0), the output (tensor 1) and temporaries (2, ...) of `size` floats."""
    allocations = [Storage(num_bytes=4 * size, origin=Origin.ALLOCATION)] * (1 + num_temporaries)
    storages = (Storage(num_bytes=4 * size, origin=Origin.INPUT), *allocations)
    tensors = tuple(
        Tensor(storage=i, offset=0, shape=(size,), strides=(1,), dtype="float32")
        for i in range(len(storages))
    )
    facts: dict[str, Any] = {"init": (), "outputs": (1,), **more}
    return Program(
        target="cuda:90:32",
        storages=storages,
        tensors=tensors,
        kernels=(copy_kernel(),),
        forward=nodes,
        **facts,
    )
