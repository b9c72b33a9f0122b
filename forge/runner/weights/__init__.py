"""Weights from the trainer to the replicas: publish, load, verify, resume. Never imports stages."""
