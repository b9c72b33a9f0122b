"""Errors that an honest kernel may have: eager's own, and those of its softmaxes."""
