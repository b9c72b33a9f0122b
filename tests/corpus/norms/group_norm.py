"""Group norm over NCHW, one program for each group."""


class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(3, 12, 7, 5)]


def get_init_inputs():
    return [4, 12]


# candidate
@triton.jit
def group_norm(
    x_ptr,
    y_ptr,
    w_ptr,
    b_ptr,
    channels,
    spatial,
    group_channels: tl.constexpr,
    eps,
    BLOCK_C: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    batch, group = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, BLOCK_C)
    s = tl.arange(0, BLOCK_S)
    channel = group * group_channels + c
    offset = (batch * channels + channel)[:, None] * spatial + s[None, :]
    mask = (c < group_channels)[:, None] & (s < spatial)[None, :]
    x = tl.load(x_ptr + offset, mask=mask, other=0.0)
    count = group_channels * spatial
    mean = tl.sum(x) / count
    d = tl.where(mask, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(d * d) / count + eps)
    w = tl.load(w_ptr + channel, mask=c < group_channels, other=0.0)
    b = tl.load(b_ptr + channel, mask=c < group_channels, other=0.0)
    tl.store(y_ptr + offset, d * rstd * w[:, None] + b[:, None], mask=mask)


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        self.groups = groups

    def forward(self, x):
        B, C, H, W = x.shape
        y = torch.empty_like(x)
        per = C // self.groups
        group_norm[(B, self.groups)](
            x,
            y,
            self.norm.weight,
            self.norm.bias,
            C,
            H * W,
            per,
            self.norm.eps,
            BLOCK_C=triton.next_power_of_2(per),
            BLOCK_S=triton.next_power_of_2(H * W),
        )
        return y
