"""What leaves a run: messages to the user, the report, the summary, numbers for trackers.

Called by `forge/runner/run.py`. A failure here is a warning and an event, never a failed run.
"""
