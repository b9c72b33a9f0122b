"""Bounds of a program. A program beyond one of them is refused before anything is done with it."""

from __future__ import annotations

MAX_NODES = 10_000
"""Nodes of both sections; those of a choice's alternatives count too."""
MAX_VARIANT_NODES = 200_000
"""Nodes of all straight-line programs together that the alternatives of choices make."""
MAX_VARIANT_TENSORS = 2_000_000
"""Tensors that these nodes name: a second or two of the judge's time."""
MAX_ALTERNATIVES = 512
MAX_CONSTANT_BYTES = 16 << 20
MAX_TTIR_BYTES = 8 << 20
"""Size of all distinct TTIR texts together."""
MAX_JSON_BYTES = 8 << 20
MAX_BYTES = MAX_CONSTANT_BYTES + MAX_TTIR_BYTES + MAX_JSON_BYTES + 64
"""Size of a program's bytes."""

MAX_STORAGES = 20_000
MAX_TENSORS = 50_000
MAX_KERNELS = 2_000
MAX_PARAMETERS = 256
"""Parameters of one kernel."""
MAX_INPUTS = 256
MAX_OUTPUTS = 1_000
MAX_NESTING = 4_000
"""Characters that say how outputs are nested."""
MAX_DIMENSIONS = 16
MAX_FLOATS = 256
"""Numbers of a kernel's source that its constants are rounded from; further ones are left out."""
MAX_OPERATIONS = 10_000
"""Operations of one kernel, each with a source line: the judge reads 10,000 in about a second."""
MAX_UNOPTIMIZED = 5 * MAX_OPERATIONS
"""Operations of one kernel before Triton optimizes it, which takes minutes for many."""
MAX_SOURCE_LINE = 1_000_000
MAX_ARGUMENTS = 256
"""Arguments of an operation, and elements of one list among them."""
MAX_LITERAL_DEPTH = 3
MAX_STORAGE_BYTES = 1 << 40
MAX_EXTENT = 1 << 44
"""Elements along one dimension, and strides."""

MAX_GRID = (2**31 - 1, 65_535, 65_535)
"""CUDA's limits; HIP's are not lower."""
MAX_DESCRIPTOR_RANK = 5
MAX_BLOCK = 1 << 20
"""Elements of one block of a tensor descriptor, as in Triton."""
