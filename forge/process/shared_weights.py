"""Weights in the GPU memory of one process, for others on this machine, by CUDA IPC.

    trainer ── share ──▶ DIR/shared.json: handles ──▶ open_shared ── worker of an engine

The directory stands for one with files, but holds only handles. They are valid until the process
that shares frees its tensors or ends. It keeps them until everybody has read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SHARED = "shared.json"
"""`{"device": UUID, "tensors": {name: {dtype, shape, offset, storage}}}`."""


def is_shared(folder: Path) -> bool:
    """True if a directory of weights has handles in place of files."""
    return (folder / SHARED).exists()


def share(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write the handles of tensors of one GPU into a new directory. A tensor with two names is
    shared by its first one, as in a checkpoint's files."""
    found: dict[str, Any] = {}
    named: set[int] = set()
    device = ""
    for name, tensor in tensors.items():
        if id(tensor) not in named:
            named.add(id(tensor))
            device = _uuid(tensor.device)
            found[name] = {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "offset": tensor.storage_offset(),
                "storage": _share_storage(tensor),
            }
    folder.mkdir(parents=True)
    partial = folder / f".{SHARED}"
    partial.write_text(json.dumps({"device": device, "tensors": found}))
    partial.rename(folder / SHARED)


def collect_shared() -> None:
    """Release memory that another process has shared, or no longer reads."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.ipc_collect()


def shared_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the shared tensors by name."""
    tensors = json.loads((folder / SHARED).read_text())["tensors"]
    return {name: tuple(entry["shape"]) for name, entry in tensors.items()}


def shared_gpu(folder: Path) -> str:
    """UUID of the GPU that has the shared tensors, as leases name it."""
    return f"GPU-{json.loads((folder / SHARED).read_text())['device']}"


def open_shared(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The shared tensors by name, in the memory of the process that shares them. Raises
    RuntimeError if it has ended, or if this process does not see its GPU."""
    import torch
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    given = json.loads((folder / SHARED).read_text())
    uuid, devices = given["device"], range(torch.cuda.device_count())
    seen = [_uuid(torch.device("cuda", index)) for index in devices]
    if uuid not in seen:
        raise RuntimeError(f"the weights are on GPU {uuid}; this process sees {', '.join(seen)}")
    device = seen.index(uuid)
    for name, entry in given["tensors"].items():
        handle, size, start, counter, counter_offset, event, is_synced = entry["storage"]
        shape = torch.Size(entry["shape"])
        yield name, rebuild_cuda_tensor(
            torch.Tensor, shape, torch.empty(shape, device="meta").stride(), entry["offset"],
            torch.storage.TypedStorage, getattr(torch, entry["dtype"]), device,
            bytes.fromhex(handle), size, start, False, bytes.fromhex(counter), counter_offset,
            bytes.fromhex(event), is_synced,
        )  # fmt: skip


def _share_storage(tensor: torch.Tensor) -> list[Any]:
    from torch.multiprocessing.reductions import reduce_tensor

    assert tensor.is_contiguous()
    arguments: Any = reduce_tensor(tensor)[1]
    _, handle, size, start, _, counter, counter_offset, event, is_synced = arguments[6:]
    return [handle.hex(), size, start, counter.hex(), counter_offset, event.hex(), is_synced]


def _uuid(device: torch.device) -> str:
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)
