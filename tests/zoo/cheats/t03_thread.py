"""T3, a thread does the work after the call has returned (deep-reinforce, SOL-ExecBench)."""

import threading

REASON = ("no_kernel_launch", "exception", "crash")
SAYS = ("launches no kernel of its own", "can't start new thread", "crashed")
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)

        def work():
            kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)

        threading.Timer(0.05, work).start()
        return y
