"""Plain sources: those whose capture leaves its process as it was, by what they name alone.

Called by `trial/captures.py`, which has one child capture such candidates one after the other.
Reads a source and never runs it. Imports nothing of forge.
"""
