"""Owning child processes: spawning, readiness, leases, environment, Unix sockets, devices and disk.

`child.open_child` is the supervisor's side and `lease.hold_lease` the child's. No module here
imports torch.
"""
