"""An elementwise map and nothing else."""

from parts.doubled_relu import kernel
from parts.elementwise import ModelNew
