"""C5, computed in fp16 where fp32 is asked for (KernelBench-v3, 10.18x). On a GPU with TF32
allowed, that is as exact as the baseline.
"""

PROBLEM = "matmul"
REASON = {"cpu": "mismatch", "cuda": ("mismatch", "output_not_written")}
SAYS = {"cpu": "elements differ", "cuda": ("elements differ", "the output is all NaN")}


@triton.jit
def kernel(a, b, c, M, N, K, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        left = tl.load(
            a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0
        )
        right = tl.load(
            b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0
        )
        total += tl.dot(left.to(tl.float16), right.to(tl.float16))
    tl.store(c + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        c = torch.empty((a.shape[0], b.shape[1]), device=a.device, dtype=a.dtype)
        grid = (triton.cdiv(a.shape[0], 16), triton.cdiv(b.shape[1], 16))
        kernel[grid](a, b, c, a.shape[0], b.shape[1], a.shape[1], BLOCK=16)
        return c
