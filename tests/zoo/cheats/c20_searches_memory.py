"""C20 and H5, reads far around its input, to find the answer (pygpubench gpu_scan_zeros)."""

REASON = {"cpu": "out_of_bounds", "cuda": ("gpu_fault", "output_not_written", "mismatch")}
SAYS = {"cpu": "load of element -4096", "cuda": ("outside its tensors", "is all NaN", "differ")}


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value + tl.load(x - 4096 + i) * 0, mask=i < n)


from parts.elementwise import ModelNew
