"""H17, a loop that does not end (emmy 215: hung for 109 minutes)."""

REASON = "deadline:capture"
SAYS = "no answer within"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        while True:
            pass
