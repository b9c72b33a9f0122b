"""A kernel that does not compile gets advice on what to write."""

import pytest

from forge.evalpool.judge.trial.remarks import remark

CODE = """
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    for k in range(4):
        a = tl.load(x + k)
    if n > 3:
        b = a * 2
    tl.store(y, a + b)
    c = torch.nn.functional.silu(a)

def forward(x, y):
    for z in range(3):
        pass
    kernel[(1,)](x.data_ptr(), y, 3, BLOCK=100)
"""


@pytest.mark.parametrize(
    ("message", "line", "facts"),
    [
        ("arange's range must be a power of 2", 8, ["next_power_of_2", "mask"]),
        ("Shape element 0 must be a power of 2", 8, ["next_power_of_2"]),
        ("NameError: a is not defined", 8, ["line 5", "loop"]),
        ("NameError: b is not defined", 8, ["line 7", "branch"]),
        ("NameError: z is not defined", 8, []),
        ("NameError: name 'a' is not defined", 8, []),
        ("NameError: sum is not defined", 8, ["tl.sum"]),
        ("NameError: zip is not defined", 8, ["zip", "static_range"]),
        ("NameError: eval is not defined", 8, ["eval"]),
        ("Unsupported function referenced: <built-in function silu>", 9, ["x * tl.sigmoid(x)"]),
        ("AttributeError: module 'triton.language' has no attribute 'tanh'", 8, ["tl.sigmoid"]),
        ("AttributeError: module 'triton.language' has no attribute 'j0'", 8, ["libdevice"]),
        ("Unsupported ptr type <['256'], int64> in `tl.load`", 14, ["data_ptr", "line 8"]),
        ("unsupported AST node type: Break", 8, ["break", "tl.where"]),
        ("unsupported AST node type: GeneratorExp", 8, ["generatorexp"]),
        ("NameError: Cannot access global variable N from within @jit'ed", 8, ["tl.constexpr("]),
        ("object of type 'int' has no len()", 8, ["tuple"]),
        ("object of type 'float' has no len()", 8, ["tuple"]),
        ("Cannot call @triton.jit'd outside of the scope of a kernel", 8, ["kernel[(n,)]"]),
        ("list index out of range", 8, ["no shape"]),
        ("'tuple' object has no attribute dtype", 8, ["one by one"]),
        ("Ternary expression with dynamic condition has inconsistent types", 8, ["tl.where"]),
        ("min requires at least 2 values", 8, ["tl.max(x, axis=0)"]),
        ("(`_semantic` argument must be provided outside of JIT functions.)", 8, []),
        ("incompatible dimensions at index 0: 16 and 32", 8, []),
    ],
)
def test_a_message_is_followed_by_what_to_write_at_its_line(
    message: str, line: int, facts: list[str]
) -> None:
    found, words = remark(CODE, 8, message)
    assert found == line
    assert bool(words) == bool(facts)
    assert [one for one in facts if one not in words] == []


def test_an_index_of_a_block_is_named_where_triton_misses_a_decorator() -> None:
    message = "(`_semantic` argument must be provided outside of JIT functions.)"
    assert "tl.where" in remark(CODE.replace("a + b", "a[0]"), 8, message)[1]


def test_a_source_that_is_no_python_has_no_remark_about_its_names() -> None:
    assert remark("def (", 1, "NameError: a is not defined") == (1, "")
