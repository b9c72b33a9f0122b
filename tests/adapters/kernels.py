"""A problem and answers to it, for tests of the API."""

from tests.cli.relu_kernel import KERNEL, PROBLEM, WRONG

__all__ = ["PROBLEM", "WRONG"]

RIGHT = KERNEL
BROKEN = KERNEL.replace("tl.maximum", "tl.maximun")
CHEAT = KERNEL.replace("        return y\n", "        return torch.relu(x)\n")
ANSWER = f"<think>\nA draft:\n```python\n{WRONG}```\n</think>\nHere it is:\n```python\n{RIGHT}```\n"
"""A whole answer of a model, with a wrong draft in its thinking."""


def numbered(number: int) -> tuple[str, str]:
    """An answer that no other number has, and its status: every third one is wrong."""
    code = WRONG if number % 3 == 0 else RIGHT
    return f"{code}# answer {number}\n", "wrong" if number % 3 == 0 else "correct"
