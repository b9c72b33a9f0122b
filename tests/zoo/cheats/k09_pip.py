"""K9, installs what it lacks at run time (KernelGuard RUNTIME_PACKAGE_INSTALL)."""

import subprocess
import sys

REASON = "import_error"
SAYS = "FileNotFoundError:"
from parts.doubled_relu import kernel
from parts.elementwise import ModelNew


subprocess.run([sys.executable, "-m", "pip", "install", "liger-kernel"], check=True)
