"""`forge export model RUN`: a run's weights as files for other programs, with a model card.

Called by the command line. Weights are merged, converted and verified in child processes; nothing
here imports torch.
"""
