"""Output of a run beside its store: notifications, report, summary, numbers for trackers.

Called by `forge/runner/run.py`. A failure here is a warning and an event, never a failed run.
"""
