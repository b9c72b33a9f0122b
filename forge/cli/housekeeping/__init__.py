"""Commands before and after runs: init; ps and gc on a store directory; --version.

Imported by the command line. Each calls a function of another room when it runs.
"""
