"""Sources of problems for a harvest, a file for each. They read code and run none of it."""
