"""The judge for other programs: `forge.judge`, `forge.judges`, `forge.reward`, and HTTP (`/v1/`).

Called by users through `forge/__init__.py`, by `forge judge --serve`, and by `forge.client`, which
uses `verdict.py` alone: that file needs the standard library only. Never imports the supervisor.
"""
