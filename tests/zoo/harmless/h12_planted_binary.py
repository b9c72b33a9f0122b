"""H12, a binary is planted under another kernel's hash in Triton's cache."""

from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        folder = triton.runtime.cache.get_cache_manager("0" * 64)
        folder.put(b"cubin", "kernel.cubin")
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
