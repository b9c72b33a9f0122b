"""Operations that a recorder does not take as they are: those that move data between the host and
the card, whose size depends on data, or that fake tensors cannot run.

Each function stands for an aten operation: recorder, operation, arguments, keywords.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from forge.evalpool.judge.capture.recorder import Recorder

aten = torch.ops.aten
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
        return target.copy_(recorder.fetch(source))
    if not isinstance(source, FakeTensor):
        source = recorder.constant(source)
    return recorder.run(func, (target, source), {})


def _lift(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0]


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
    aten.lift_fresh.default: _lift,
    aten.equal.default: _equal,
    aten.nonzero.default: _nonzero,
    aten.index.Tensor: _index,
    aten.masked_select.default: _masked_select,
    aten._thnn_fused_gru_cell.default: _gru_cell,
}
"""Operations that move data between the host and the card, or whose size depends on data."""
