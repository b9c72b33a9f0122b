"""Places in a storage that the lanes of an access name: strided windows, or an offset for each.

Both read and write any flat array that has one entry per so many bytes of the storage: its
elements, the record of written bytes, the record of writers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.memory.storages import Storage
    from forge.evalpool.judge.ttir.symbolic import Symbolic
    from forge.evalpool.judge.ttir.values import Array

Offsets = NDArray[np.int64]


@dataclass(slots=True)
class Windows:
    """The same strided window at a base of each instance. Offsets and strides in bytes."""

    bases: Offsets
    """`[n or 1]`"""
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    """Sizes of the window; 1 along axes that the address does not vary along."""

    @property
    def lowest(self) -> int:
        """Lowest offset within the window, relative to its base."""
        return sum(min(stride * (size - 1), 0) for stride, size in self._axes())

    @property
    def highest(self) -> int:
        """Highest offset within the window, relative to its base."""
        return sum(max(stride * (size - 1), 0) for stride, size in self._axes())

    def _axes(self) -> list[tuple[int, int]]:
        return list(zip(self.strides, self.shape, strict=True))

    def step(self) -> int | None:
        """Distance between the bases of consecutive instances, where it is always the same."""
        if len(self.bases) == 1:
            return 0
        step = int(self.bases[1]) - int(self.bases[0])
        if len(self.bases) == 2 or bool((np.diff(self.bases) == step).all()):
            return step
        return None

    def is_aligned(self, unit: int) -> bool:
        """True if all offsets are multiples of `unit`."""
        if any(stride % unit for stride, size in self._axes() if size > 1):
            return False
        return not bool((self.bases % unit).any())

    def view(self, flat: Array, unit: int) -> Array | None:
        """A strided view of a flat array of entries of `unit` bytes; None if there is none."""
        step = self.step()
        if step is None:
            return None
        size = flat.itemsize
        strides = (step // unit * size, *(stride // unit * size for stride in self.strides))
        offset = int(self.bases[0]) // unit * size
        return np.ndarray(
            (len(self.bases), *self.shape), flat.dtype, buffer=flat, offset=offset, strides=strides
        )

    def read(self, flat: Array, unit: int) -> Array:
        """Entries of a flat array; may be a view of it."""
        view = self.view(flat, unit)
        if view is not None:
            return view
        lowest, highest = self.lowest // unit, self.highest // unit
        size = flat.itemsize
        windows: Array = np.ndarray(
            (len(flat) - (highest - lowest), *self.shape),
            flat.dtype,
            buffer=flat,
            offset=-lowest * size,
            strides=(size, *(stride // unit * size for stride in self.strides)),
        )
        return windows[self.bases // unit + lowest]

    def write(self, flat: Array, unit: int, values: Array, mask: Array | None) -> None:
        """Writes lanes in order, so that the last one wins."""
        view = self.view(flat, unit)
        wanted = (len(self.bases), *self.shape)
        fits = all(a in (1, b) for a, b in zip(values.shape, wanted, strict=True))
        if mask is not None:
            fits = fits and all(a in (1, b) for a, b in zip(mask.shape, wanted, strict=True))
        if view is None or not fits:
            self.scattered().write(flat, unit, values, mask)
        elif mask is None:
            view[...] = values
        else:
            np.copyto(view, values, where=mask)

    def scattered(self) -> Scattered:
        """The same places, one by one."""
        offsets = self.bases.reshape(-1, *(1,) * len(self.shape))
        for axis, (stride, size) in enumerate(self._axes()):
            if size > 1:
                shape = [1] * (len(self.shape) + 1)
                shape[axis + 1] = size
                offsets = offsets + (np.arange(size, dtype=np.int64) * stride).reshape(shape)
        return Scattered(offsets)

    def is_disjoint(self, unit: int) -> bool:
        """True if certainly no two lanes of different instances share an entry."""
        step = self.step()
        if step is None:
            return False
        axes = sorted(
            (abs(stride), size)
            for stride, size in [(step, len(self.bases)), *self._axes()]
            if size > 1
        )
        extent = unit
        for stride, size in axes:
            if stride < extent:
                return False
            extent = stride * (size - 1) + extent
        return True


@dataclass(slots=True)
class Scattered:
    """An offset in bytes for each lane: compact, `[n or 1, ...]`."""

    offsets: Offsets

    def is_aligned(self, unit: int) -> bool:
        """True if all offsets are multiples of `unit`."""
        return not bool((self.offsets % unit).any())

    def read(self, flat: Array, unit: int) -> Array:
        """Entries of a flat array, as a copy."""
        return flat[self.offsets // unit if unit > 1 else self.offsets]

    def write(self, flat: Array, unit: int, values: Array, mask: Array | None) -> None:
        """Writes lanes in order, so that the last one wins."""
        places = self.offsets // unit if unit > 1 else self.offsets
        arrays: list[Any] = [places, values] if mask is None else [places, values, mask]
        arrays = list(np.broadcast_arrays(*arrays))
        if mask is None:
            flat[arrays[0]] = arrays[1]
        else:
            lanes = arrays[2]
            flat[arrays[0][lanes]] = arrays[1][lanes]

    def write_reversed(self, flat: Array, unit: int, values: Array, mask: Array | None) -> None:
        """Writes the lanes of each instance from the last to the first, which wins."""
        arrays: list[Any] = [self.offsets, values] if mask is None else [self.offsets, values, mask]
        offsets, values, *masks = (
            one.reshape(len(one), -1)[:, ::-1] for one in np.broadcast_arrays(*arrays)
        )
        Scattered(offsets).write(flat, unit, values, masks[0] if masks else None)

    def is_disjoint(self, unit: int) -> bool:
        """Always False: the places are unknown."""
        return False


Places = Windows | Scattered


class Part(NamedTuple):
    """Lanes of an access that lie in one storage."""

    instances: NDArray[np.intp] | None
    """Positions in the group; None for all of it."""
    number: int
    storage: Storage
    places: Places
    mask: Array | None


def windows_of(addresses: Symbolic, origin: int) -> Windows | None:
    """Addresses as windows whose offsets count from `origin`; None where they are not strided."""
    rank = addresses.terms[0].ndim - 1
    bases = np.array([-origin], np.int64)
    strides, shape = [0] * rank, [1] * rank
    for term in addresses.terms:
        sizes = term.shape
        axes = [axis for axis in range(1, rank + 1) if sizes[axis] > 1]
        if sizes[0] > 1 and axes:
            return None
        if not axes:
            bases = bases + term.reshape(-1)
            continue
        corner = term.reshape(-1)[:1]
        bases = bases + corner
        rest = term - corner
        if len(axes) == 1:
            axis = axes[0]
            line = rest.reshape(-1)
            stride = int(line[1])
            if not np.array_equal(line, np.arange(len(line), dtype=np.int64) * stride):
                return None
            strides[axis - 1] += stride
            shape[axis - 1] = len(line)
            continue
        total = np.zeros((1,) * (rank + 1), np.int64)
        for axis in axes:
            place = [0] * (rank + 1)
            place[axis] = 1
            stride = int(rest[tuple(place)])
            form = [1] * (rank + 1)
            form[axis] = sizes[axis]
            total = total + (np.arange(sizes[axis], dtype=np.int64) * stride).reshape(form)
            strides[axis - 1] += stride
            shape[axis - 1] = sizes[axis]
        if not np.array_equal(total, rest):
            return None
    return Windows(bases, tuple(strides), tuple(shape))
