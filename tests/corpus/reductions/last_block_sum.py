"""Sum of all elements in one launch: the last program to finish adds the partial sums."""


class Model(nn.Module):
    def forward(self, x):
        return x.sum()


def get_inputs():
    return [torch.randn(2000)]


# candidate
@triton.jit
def total(X, PART, COUNT, Y, N, PROGRAMS, BLOCK: tl.constexpr, BP: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    tl.store(PART + p, tl.sum(tl.load(X + i, mask=i < N, other=0.0)))
    tl.debug_barrier()
    done = tl.atomic_add(COUNT, 1, sem="acq_rel")
    if done == PROGRAMS - 1:
        j = tl.arange(0, BP)
        part = tl.load(PART + j, mask=j < PROGRAMS, other=0.0)
        tl.store(Y, tl.sum(part))


class ModelNew(nn.Module):
    def forward(self, x):
        programs = triton.cdiv(x.numel(), 256)
        part = torch.empty(programs, device=x.device)
        count = torch.zeros(1, dtype=torch.int32, device=x.device)
        y = torch.empty((), device=x.device)
        total[(programs,)](
            x, part, count, y, x.numel(), programs, BLOCK=256, BP=triton.next_power_of_2(programs)
        )
        return y
