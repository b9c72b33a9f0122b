"""The transformers engine: slow, exact, for every architecture that the trainer can train."""
