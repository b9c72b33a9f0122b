"""Parts of hostile candidates: kernels that do little, and a wrapper for forward."""

COPY = """
@triton.jit
def copy_kernel(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)

def copied(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), B=256)
    return y

@triton.jit
def relu_kernel(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.maximum(tl.load(x + i, mask=i < n), 0.0), mask=i < n)

def relu(x):
    y = torch.empty_like(x)
    relu_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), B=256)
    return y
"""
"""`copied(x)` and `relu(x)`: a kernel that copies, and an honest one."""


def model(forward: str, *, init: str = "", arguments: str = "x", before: str = "") -> str:
    """A candidate whose `forward` has these lines."""

    def lines(text: str) -> str:
        return "\n".join(f"        {line}" for line in text.strip("\n").split("\n"))

    return (
        f"{COPY}\n{before}\nclass ModelNew(torch.nn.Module):\n    def __init__(self):\n"
        f"        super().__init__()\n{lines(init) if init else ''}\n"
        f"    def forward(self, {arguments}):\n{lines(forward)}\n"
    )
