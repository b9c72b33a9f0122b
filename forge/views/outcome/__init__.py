"""Results of training: gains between evaluations, and an answer before and after it.

Called by reports, comparisons and the monitor; reads views and indexed tables only, and draws
nothing.
"""
