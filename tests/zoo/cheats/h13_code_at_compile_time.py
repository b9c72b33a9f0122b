"""H13, a default argument is evaluated where nobody looks."""

REASON = "crash"
SAYS = "crashed"
from parts.doubled_relu import kernel
from parts.elementwise import ModelNew


def late(done=exec("import os; os.abort()")):
    return done
