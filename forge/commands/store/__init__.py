"""Commands on a whole store directory: `forge ps`, `forge gc`.

Called by the command line. Reads run directories and asks live supervisors; never opens a run for
writing, except for its lock while files of it are removed.
"""
