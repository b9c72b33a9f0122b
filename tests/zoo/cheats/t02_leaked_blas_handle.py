"""T2, a library's handle is set to another stream once (KernelBench's non_default_stream)."""

REASON = {"cpu": "exception", "cuda": "unsupported"}
SAYS = {"cpu": "AttributeError: module", "cuda": "no card is here while host code runs"}
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        handle = torch.cuda.current_blas_handle()
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
