"""T5, elapsed_time is replaced (KernelGuard TIMER_MONKEYPATCH)."""

from parts.doubled_relu import kernel
from parts.elementwise import ModelNew


torch.cuda.Event.elapsed_time = lambda self, end: 0.001
