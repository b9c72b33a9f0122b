"""Commands on a store directory, and the version: ps, gc, --version.

Imported by the command line. Each calls a function of another room when it runs.
"""
