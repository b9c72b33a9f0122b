"""Sinusoidal embedding of time steps with libdevice functions."""


class Model(nn.Module):
    def forward(self, t):
        f = torch.exp(-9.210340371976184 * torch.arange(16, device=t.device).float() / 16)
        a = t[:, None].float() * f[None]
        return torch.cat([a.cos(), a.sin()], -1)


def get_inputs():
    return [torch.randint(0, 1000, (9,))]


# candidate
from triton.language.extra import libdevice


@triton.jit
def timestep(t_ptr, y_ptr, HALF: tl.constexpr):
    row = tl.program_id(0)
    t = tl.load(t_ptr + row).to(tl.float32)
    i = tl.arange(0, HALF)
    angle = t * libdevice.exp(i.to(tl.float32) * (-9.210340371976184 / HALF))
    tl.store(y_ptr + row * 2 * HALF + i, libdevice.cos(angle))
    tl.store(y_ptr + row * 2 * HALF + HALF + i, libdevice.sin(angle))


class ModelNew(nn.Module):
    def forward(self, t):
        y = torch.empty((t.shape[0], 32), device=t.device)
        timestep[(t.shape[0],)](t, y, HALF=16)
        return y
