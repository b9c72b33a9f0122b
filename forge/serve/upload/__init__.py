"""Weights over HTTP: `sending` is the side of the run, `receiving` that of `forge serve --weights`,
and `files` what both know about a directory of weights.

Called by the runner and by `commands.serve`. Never imports an engine.
"""
