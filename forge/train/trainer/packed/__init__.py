"""The packed form of a batch, and the forward pass that scores it. Imports no other room."""
