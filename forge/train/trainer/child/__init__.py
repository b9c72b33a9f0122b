"""The trainer process, for both kinds of stage. Of the trainer it imports `packed` alone."""
