"""The grammar of TTIR: `parser.parse` reads a module's text.

Each operation is read the same way: a head of operands, words, attributes and regions in any order,
then its types. Only the operations with regions or successors have a grammar of their own. Never
imports the evaluator.
"""
