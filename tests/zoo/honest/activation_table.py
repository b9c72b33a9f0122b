"""Functions of torch in a table, of which none is called."""

ACTIVATIONS = {"relu": torch.relu, "gelu": torch.nn.functional.gelu}
DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16}
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        assert "relu" in ACTIVATIONS and x.dtype in DTYPES
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
