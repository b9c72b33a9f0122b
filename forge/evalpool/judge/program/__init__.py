"""A captured program as plain data, and what can be read from its structure without running it.

`format` has the records; `wire` their bytes, within `limits`; `explain` their text for people;
`ops` the closed table of torch operations with their schemas, `dialect` that of TTIR; `walk` the
nodes and the bytes of tensors; `signature` the types of a kernel's parameters; `dataflow` the
sources of contents; `questions` compares captures for different inputs; `policy` judges who did the
work.

Called by the capture child, which writes a program, and by the judge, which parses, explains and
judges it. Imports neither torch nor triton, and nothing of `capture`, `compiler` or `execute`.
"""
