"""Reads a view through its strides."""

PROBLEM = "transposed_relu"


@triton.jit
def kernel(x, y, rows, columns, by_row, by_column, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    value = tl.load(x + row * by_row + i * by_column, mask=i < columns)
    tl.store(y + row * columns + i, tl.maximum(value, 0.0), mask=i < columns)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.t()
        y = torch.empty(x.shape, device=x.device, dtype=x.dtype)
        block = triton.next_power_of_2(x.shape[1])
        kernel[(x.shape[0],)](x, y, x.shape[0], x.shape[1], x.stride(0), x.stride(1), BLOCK=block)
        return y
