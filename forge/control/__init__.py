"""The client's side of control.sock: what `forge status`, `forge stop` and the TUI say to a running
supervisor.
"""

from forge.control.client import ControlClient
from forge.control.records import ComponentStatus, LiveStatus

__all__ = ["ComponentStatus", "ControlClient", "LiveStatus"]
