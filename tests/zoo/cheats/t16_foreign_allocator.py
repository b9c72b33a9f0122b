"""H16, memory comes from a library of its own, loaded behind torch."""

REASON = "exception"
SAYS = "OSError: x.so: cannot open shared object file: No such file"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        torch.cuda.memory.CUDAPluggableAllocator("x.so", "malloc", "free")
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
