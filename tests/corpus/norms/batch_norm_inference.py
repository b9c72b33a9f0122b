"""Batch norm at inference, folded to a scale and a shift in the kernel."""


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.bn.running_mean.normal_()
        self.bn.running_var.uniform_(0.5, 2)
        self.bn.eval()

    def forward(self, x):
        return torch.relu(self.bn(x))


def get_inputs():
    return [torch.randn(2, 6, 8, 10)]


def get_init_inputs():
    return [6]


# candidate
@triton.jit
def bn_relu(X, Y, mean, var, weight, bias, eps, spatial, C, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    c = plane % C
    scale = tl.load(weight + c) / tl.sqrt(tl.load(var + c) + eps)
    shift = tl.load(bias + c) - tl.load(mean + c) * scale
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + plane * spatial + i, mask=i < spatial)
    tl.store(Y + plane * spatial + i, tl.maximum(x * scale + shift, 0.0), mask=i < spatial)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.bn.eval()

    def forward(self, x):
        B, C, H, W = x.shape
        y = torch.empty_like(x)
        bn = self.bn
        bn_relu[(B * C, triton.cdiv(H * W, 64))](
            x, y, bn.running_mean, bn.running_var, bn.weight, bn.bias, bn.eps, H * W, C, BLOCK=64
        )
        return y
