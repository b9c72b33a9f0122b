"""Making `.venv`: `python3 -m forge.install`, called by `make setup` under the system's Python.

Standard library only, and of forge only its errors.
"""
