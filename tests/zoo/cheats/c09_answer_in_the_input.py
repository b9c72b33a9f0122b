"""C9, the answer is written over the input, and handed out as a copy."""

REASON = "inputs_modified"
SAYS = "outlasts the call"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = x
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y.clone()
