"""CUDA's IPC without a GPU, inside one process: a handle is good while its tensor lives."""

import weakref
from typing import Any

import pytest
import torch
from torch.multiprocessing import reductions

from forge.process import shared_weights

UUID = "0b2e"


class FakeIpc:
    """Takes the place of torch's functions."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.tensors: list[weakref.ref[torch.Tensor]] = []
        patch.setattr(reductions, "reduce_tensor", self.reduce)
        patch.setattr(reductions, "rebuild_cuda_tensor", self.rebuild)
        patch.setattr(shared_weights, "_uuid", lambda device: UUID)
        patch.setattr(torch.cuda, "device_count", lambda: 1)

    def reduce(self, tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
        self.tensors.append(weakref.ref(tensor))
        handle = len(self.tensors).to_bytes(2, "big")
        size, stride, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        kept = (handle, tensor.nbytes, 512, tensor.requires_grad, b"counter", 3, b"event", True)
        return None, (torch.Tensor, size, stride, offset, None, tensor.dtype, 0, *kept)

    def rebuild(self, _: Any, size: Any, stride: Any, offset: int, *more: Any) -> torch.Tensor:
        _, dtype, device, handle, nbytes, start, grad, counter, at, event, is_synced = more
        tensor = self.tensors[int.from_bytes(handle, "big") - 1]()
        if tensor is None:
            raise RuntimeError("CUDA error: invalid resource handle")
        assert (tensor.dtype, tensor.nbytes, device) == (dtype, nbytes, 0)
        assert (start, grad, counter, at, event, is_synced) == (
            512,
            False,
            b"counter",
            3,
            b"event",
            1,
        )
        return torch.as_strided(tensor, size, stride, offset)
