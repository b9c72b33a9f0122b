"""An elementwise map and nothing else."""

PROBLEM = "relu"
from parts.doubled_relu import kernel
from parts.elementwise import ModelNew
