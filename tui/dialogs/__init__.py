"""Input from a person: confirmation, a line of text, a filter, help, the command palette."""
