"""Engines behind a URL that forge did not start: `[serve] url`.

Called by the runner for evaluations. Never starts a process and never sends weights.
"""
