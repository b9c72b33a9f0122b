"""Engines behind a URL that forge did not start: `[serve] url`.

Called by the runner: `remote` for evaluations, `taking` for runs that train, whose weights are sent
by `forge.serve.upload`. Never starts a process.
"""
