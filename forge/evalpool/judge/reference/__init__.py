"""Third-party code: children that run a problem's reference, to draw inputs and to examine it."""
