"""Blockwise conversion to fp8 with scales in fp32, in the manner of DeepSeek."""


class Model(nn.Module):
    def forward(self, x):
        b = x.view(x.shape[0], -1, 32)
        s = b.abs().amax(-1) / 448.0
        return (b / s[..., None]).to(torch.float8_e4m3fn).view(x.shape), s


def get_inputs():
    return [torch.randn(12, 128)]


# candidate
@triton.jit
def to_fp8(x_ptr, y_ptr, s_ptr, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offs = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + offs).to(tl.float32)
    s = tl.max(tl.abs(x)) / 448.0
    y = (x / s).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + offs, y)
    tl.store(s_ptr + pid, s)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
        s = torch.empty((x.shape[0], x.shape[1] // 32), device=x.device)
        to_fp8[(x.numel() // 32,)](x, y, s, BLOCK_SIZE=32)
        return y, s
