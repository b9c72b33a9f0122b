"""The embedded engine: llama.cpp with a batched loop of forge. Imports no torch."""
