"""The model to train: loaded with its adapter and attention, or made. Imports no trainer."""
