"""Errors that an honest kernel may have: eager's own, and those of softmaxes and roundings."""
