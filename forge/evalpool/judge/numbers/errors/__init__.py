"""Errors that an honest kernel may have where float64 has none."""
