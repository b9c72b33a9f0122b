"""A problem's draw as the judge keeps it: built from an oracle's answer, or why there is none."""
