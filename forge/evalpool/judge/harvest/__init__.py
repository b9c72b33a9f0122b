"""A harvest's work on one problem, in a sandboxed child: the sizes that it bears, and its answer by
the compiler. `asking.py` is the judge's side, `child.py` the child's."""
