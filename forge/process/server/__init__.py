"""HTTP servers of forge and what guards them: addresses, connections, bodies, who may ask.

Called by every process that serves: the supervisor, judges, engines, `forge judge --serve` and
`forge serve`. Clients are in `forge.process.ask`. Never imports another room but `process`.
"""
