"""K3, inherits from the reference (Kevin)."""

REASON = "import_error"
SAYS = "NameError: name"
from parts.doubled_relu import kernel


class ModelNew(Model): ...
