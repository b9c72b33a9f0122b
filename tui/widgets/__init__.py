"""Parts of screens, one a file: they show what they are given and post what was asked for."""
