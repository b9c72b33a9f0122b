"""Times on a card: samples and speed-ups, measured baselines, the card's peaks.

Called by `trial`. The child that runs references for a baseline imports torch; `baseline` does not.
"""
