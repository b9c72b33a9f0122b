# pyright: strict
"""Requests over connections that stay open: what `ask.send` sends through to engines and judges.

A request costs the event loop a fifth of httpx's CPU time, and a supervisor sends two a turn. httpx
does the rest: streams, and https. Called by `ask.py`; imports the other files of `process`, h11 and
httpx.
"""
