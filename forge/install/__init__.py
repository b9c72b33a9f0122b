"""Makes `.venv`: `python3 -m forge.install`, called by `make setup` under the system's Python.

Uses the standard library only, and no other room of forge except its errors.
"""
