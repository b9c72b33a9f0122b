"""Text for a terminal: escaping, widths, numbers, times, secrets."""
