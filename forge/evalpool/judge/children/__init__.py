"""Processes of a judge that run code of others: a launcher, a zygote behind it, its forks."""
