"""How well a judge works: canaries say whether it is right, the times of verdicts how fast it is.

Called by `evalpool.keeper` and `evalpool.seating`, which decide what follows. Never sends a request
and never imports a judge's own code.
"""
