"""Read-only answers about runs: functions that return data, each with a render function for the
terminal.
"""
