"""The version of forge. A leaf: every room may import it, and it loads under an old Python."""

__version__ = "0.1.0"
