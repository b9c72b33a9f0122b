"""Child processes, HTTP between processes, and this machine's devices, memory and disk.

`child.open_child` is the supervisor's side of a child, `lease.hold_lease` the child's; `ask` sends
requests over the connections of `client`, and the room `server` serves them. Called by every room
that starts or talks to a process. Never imports torch, nor another room except `errors`.
"""
