"""Samplers, which choose the next problem: uniformly, by level, or by learning signal.

Called by the producer. Pure: no clock, no task; imports only records.
"""
