"""Judgements on a card: a candidate's programs in its executor, their memory, their times.

Called by the judge's app, in its threads. Imports torch, in the judge's own context on the card.
"""
