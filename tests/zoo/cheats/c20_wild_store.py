"""C20 and H18, a store that ends the context for everybody in the process (KernelBench issue 76)."""

REASON = {"cpu": "out_of_bounds", "cuda": "gpu_fault"}
SAYS = {"cpu": "store of an address outside", "cuda": "outside its tensors"}


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i + 4000000000000, value, mask=i < n)


from parts.elementwise import ModelNew
