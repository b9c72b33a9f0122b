"""The client of control.sock, the socket of a running supervisor.

Called by `forge status`, `forge stop` and the TUI. The server is `runner.stages.control`, whose
records are here. Never imports another room but `process`.
"""

from forge.control.client import ControlClient
from forge.control.records import ComponentStatus, LiveStatus

__all__ = ["ComponentStatus", "ControlClient", "LiveStatus"]
