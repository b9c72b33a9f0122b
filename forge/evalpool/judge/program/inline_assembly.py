"""Templates of inline assembly that a kernel may hold: pure arithmetic on its operands.

Part of the closed list (`dialect.py`), read by the compiler's child and by our own parser. An
operand is `$0`, a number, or a register that the template declares itself, so a special register
(`%globaltimer`, `%smid`) and the address of a variable cannot be written.
"""

from __future__ import annotations

import re


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


PTX_OPCODES = _words(
    "abs add addc and bfe bfi bfind brev clz cnot copysign cos cvt div dp2a dp4a ex2 fma fns lg2 "
    "lop3 mad mad24 madc max min mov mul mul24 neg not or popc prmt rcp rem rsqrt sad selp set "
    "setp shf shl shr sin slct sqrt sub subc szext tanh testp vabsdiff vadd vmad vmax vmin vset "
    "vshl vshr vsub xor vabsdiff2 vadd2 vavrg2 vmax2 vmin2 vset2 vsub2 vabsdiff4 vadd4 vavrg4 "
    "vmax4 vmin4 vset4 vsub4"
)
"""Instructions without memory, barrier, trap, vote or shuffle."""
AMD_OPCODE = re.compile(
    r"v_(pk_)?(add|sub|mul|fma|mad|mac|min3?|max3?|med3|exp|log|rcp|rsq|sqrt|cvt|and|or3?|xor|not|"
    r"lshlrev|lshrrev|ashrrev|lshl_add|add_lshl|bfe|bfi|perm_b32|trunc|floor|ceil|rndne|fract)"
    r"(_[a-z0-9_]+)?"
)
"""The same for AMD: arithmetic of one lane."""
WHOLE = frozenset(
    {"griddepcontrol.wait; // dummy $0", "griddepcontrol.launch_dependents; // dummy $0"}
)
"""Templates of Triton 3.6 that are accepted as they are (`tl.extra.cuda.gdc_wait`)."""

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BLOCK = re.compile(r"\{(.*)\}", re.DOTALL)
_DECLARATION = re.compile(r"\.reg\s*\.(?:pred|[bsuf](?:8|16|32|64|128)|f16x2)\s+(.+)", re.DOTALL)
_DECLARED = re.compile(r"([A-Za-z_]\w*)(?:<(\d{1,3})>)?")
_INSTRUCTION = re.compile(
    r"(?:@!?(?P<guard>\w+)\s+)?(?P<opcode>[a-z]\w*)(?P<modifiers>(?:\.\w+(?:::\w+)?)*)"
    r"(?:\s+(?P<operands>.+))?",
    re.DOTALL,
)
_NUMBER = r"-?(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|\d+(?:\.\d+)?U?)"
_OPERAND = re.compile(rf"\$\d{{1,3}}|{_NUMBER}|\w+|\S")
_PLAIN_OPERAND = re.compile(rf"\$\d{{1,3}}|{_NUMBER}|[,|!{{}}]")
_CONSTRAINT = re.compile(r"=?&?[rhlfdcqbnvs]|\d{1,2}")
_SPACES = _words("global shared local const param volatile cluster cta sys gpu")


def refusal(template: str, constraints: str) -> str:
    """Returns the reason to refuse a template, or an empty string where it is pure arithmetic."""
    if template.strip() in WHOLE:
        return ""
    for one in constraints.split(","):
        if not _CONSTRAINT.fullmatch(one.strip()):
            return f"constraint {one!r}"
    text = _COMMENT.sub(" ", template).strip()
    block = _BLOCK.fullmatch(text)
    if block and "{" not in block[1].split(";")[0]:
        text = block[1]
    registers: set[str] = set()
    for statement in re.split(r"[;\n]" if "v_" in text else ";", text):
        reason = _statement_refusal(statement.strip(), registers)
        if reason:
            return reason
    return ""


def _statement_refusal(statement: str, registers: set[str]) -> str:
    """The same for one statement. Adds the registers that it declares."""
    if not statement:
        return ""
    declaration = _DECLARATION.fullmatch(statement)
    if declaration:
        return _declare(declaration[1], registers)
    found = _INSTRUCTION.fullmatch(statement)
    if found is None:
        return f"statement {statement!r}"
    opcode, modifiers = found["opcode"], found["modifiers"].split(".")
    if opcode not in PTX_OPCODES and not AMD_OPCODE.fullmatch(opcode):
        return f"instruction {opcode!r}"
    if not _SPACES.isdisjoint(part for one in modifiers for part in one.split("::")):
        return f"instruction {opcode + found['modifiers']!r}"
    operands = _OPERAND.findall(found["operands"] or "")
    if found["guard"]:
        operands.append(found["guard"])
    for operand in operands:
        if operand not in registers and not _PLAIN_OPERAND.fullmatch(operand):
            return f"operand {operand!r}"
    return ""


def _declare(names: str, registers: set[str]) -> str:
    for name in names.split(","):
        found = _DECLARED.fullmatch(name.strip())
        if found is None:
            return f"register {name.strip()!r}"
        if found[2] is None:
            registers.add(found[1])
        else:
            registers |= {f"{found[1]}{number}" for number in range(int(found[2]))}
    return ""
