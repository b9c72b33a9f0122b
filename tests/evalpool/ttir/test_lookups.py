"""Arguments of a kernel whose memory it reads where other memory says so."""

import pytest

from forge.evalpool.judge.ttir import verify as lookups
from forge.evalpool.judge.ttir.parse import InvalidModule, parse
from forge.evalpool.judge.ttir.verify import lookups_of

TABLE, INDEX, OUTPUT = 1, 2, 4
"""Bits of the arguments."""


def places(source: str) -> set[tuple[int, int]]:
    """Tables with what chooses places in them."""
    return {(one.tables, one.by) for one in lookups_of(parse(source), "k") if one.is_place}


def uses(source: str) -> set[tuple[int, int]]:
    """Tables with what decides whether they are used."""
    found = lookups_of(parse(source), "k")
    return {(one.tables, one.by) for one in found if one.by and not one.is_place}


HEAD = """
module {
  tt.func public @k(%t: !tt.ptr<f32>, %n: !tt.ptr<i32>, %y: !tt.ptr<f32>, %s: i32) {
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %pid = tt.get_program_id x : i32
    %np = tt.addptr %n, %pid : !tt.ptr<i32>, i32
    %yp = tt.addptr %y, %pid : !tt.ptr<f32>, i32
    %at = tt.load %np : !tt.ptr<i32>
"""
TAIL = """
    %p = tt.addptr %t, %place : !tt.ptr<f32>, i32
    %v = tt.load %p : !tt.ptr<f32>
    tt.store %yp, %v : !tt.ptr<f32>
    tt.return
  }
}
"""
CHOSEN = {
    "by a sum": "%place = arith.addi %at, %one : i32",
    "by a branch": """%more = arith.cmpi sgt, %at, %zero : i32
    %place = scf.if %more -> (i32) {
      scf.yield %one : i32
    } else {
      scf.yield %zero : i32
    }""",
    "by the bounds of a loop": """%place = scf.for %i = %zero to %at step %one iter_args(%c = %zero)
        -> (i32) : i32 {
      scf.yield %i : i32
    }""",
    "by the condition of a loop": """%place = scf.while (%c = %zero) : (i32) -> i32 {
      %more = arith.cmpi slt, %c, %at : i32
      scf.condition(%more) %c : i32
    } do {
    ^bb0(%d: i32):
      %next = arith.addi %d, %one : i32
      scf.yield %next : i32
    }""",
    "by what is read there": """%q = tt.addptr %n, %at : !tt.ptr<i32>, i32
    %place = tt.load %q : !tt.ptr<i32>""",
}
NOT_CHOSEN = {
    "by the program": "%place = arith.addi %pid, %one : i32",
    "by a number": "%place = arith.addi %s, %one : i32",
}


@pytest.mark.parametrize("how", CHOSEN)
def test_a_place_that_memory_chooses_is_found(how: str) -> None:
    assert (TABLE, INDEX) in places(HEAD + CHOSEN[how] + TAIL)


@pytest.mark.parametrize("how", NOT_CHOSEN)
def test_a_place_that_no_memory_chooses_is_none(how: str) -> None:
    assert places(HEAD + NOT_CHOSEN[how] + TAIL) == set()


def test_a_gather_of_values_that_were_read_is_found() -> None:
    values, index = "tensor<16xf32>", "tensor<16xi32>"
    body = f"""
    %r = tt.make_range {{end = 16 : i32, start = 0 : i32}} : {index}
    %ts = tt.splat %t : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
    %tp = tt.addptr %ts, %r : tensor<16x!tt.ptr<f32>>, {index}
    %values = tt.load %tp : tensor<16x!tt.ptr<f32>>
    %index = tt.splat %at : i32 -> {index}
    %got = tt.gather %values[%index] {{axis = 0 : i32}} : ({values}, {index}) -> {values}
    tt.return
  }}
}}
"""
    assert (TABLE, INDEX) in places(HEAD + body)


HANDED_OVER = """cf.cond_br %more, ^bb1, ^bb2
    ^bb1:
      cf.br ^bb3(%a : i32)
    ^bb2:
      cf.br ^bb3(%zero : i32)
    ^bb3(%b: i32):
      tt.map_elementwise.return %b : i32"""
RETURNED = """cf.cond_br %more, ^bb1, ^bb2
    ^bb1:
      tt.map_elementwise.return %one : i32
    ^bb2:
      tt.map_elementwise.return %zero : i32"""


@pytest.mark.parametrize("blocks", [HANDED_OVER, RETURNED])
def test_a_place_that_the_blocks_of_a_map_choose_is_found(blocks: str) -> None:
    index = "tensor<16xi32>"
    body = f"""
    %i = tt.splat %at : i32 -> {index}
    %p = "tt.map_elementwise"(%i) <{{pack = 1 : i32}}> ({{
    ^bb0(%a: i32):
      %more = arith.cmpi sgt, %a, %zero : i32
      {blocks}
    }}) : ({index}) -> {index}
    %ts = tt.splat %t : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
    %tp = tt.addptr %ts, %p : tensor<16x!tt.ptr<f32>>, {index}
    %values = tt.load %tp : tensor<16x!tt.ptr<f32>>
    tt.return
  }}
}}
"""
    assert (TABLE, INDEX) in places(HEAD + body)


PLAIN = """%tp = tt.addptr %t, %pid : !tt.ptr<f32>, i32
    %is = arith.cmpi sgt, %at, %zero : i32
    %nought = arith.constant 0.0 : f32
    %known = tt.load %tp : !tt.ptr<f32>
    %f = arith.sitofp %at : i32 to f32
    %made = arith.mulf %f, %f : f32
"""
STORED = "tt.store %yp, %v : !tt.ptr<f32>"
USED = {
    "by a mask": f"%v = tt.load %tp, %is : !tt.ptr<f32>\n{STORED}",
    "by a mask of the store": "tt.store %yp, %known, %is : !tt.ptr<f32>",
    "by a choice of values": f"%v = arith.select %is, %known, %made : f32\n{STORED}",
    "by a branch": f"""%v = scf.if %is -> (f32) {{
      scf.yield %known : f32
    }} else {{
      scf.yield %made : f32
    }}
    {STORED}""",
    "by a branch that stores": "scf.if %is { tt.store %yp, %known : !tt.ptr<f32> }",
    "by a factor": f"""%u = arith.uitofp %is : i1 to f32
    %v = arith.mulf %u, %known : f32
    {STORED}""",
    "by a loop that replaces it": f"""%v = scf.for %i = %zero to %at step %one
        iter_args(%c = %known) -> (f32) : i32 {{
      scf.yield %made : f32
    }}
    {STORED}""",
    "by a jump": """cf.cond_br %is, ^bb1, ^bb2
    ^bb1:
      tt.store %yp, %known : !tt.ptr<f32>
      tt.return
    ^bb2:
      tt.store %yp, %made : !tt.ptr<f32>""",
}
COMPUTED = {
    "with it": f"%v = arith.mulf %known, %made : f32\n{STORED}",
    "with it, where it is not skipped": f"""%v = scf.if %is -> (f32) {{
      %w = arith.mulf %known, %made : f32
      scf.yield %w : f32
    }} else {{
      scf.yield %nought : f32
    }}
    {STORED}""",
    "as the smaller of both": f"""%less = arith.cmpf olt, %known, %made : f32
    %v = arith.select %less, %known, %made : f32
    {STORED}""",
    "from where a loop begins": f"""%v = scf.for %i = %zero to %at step %one
        iter_args(%c = %known) -> (f32) : i32 {{
      %w = arith.addf %c, %made : f32
      scf.yield %w : f32
    }}
    {STORED}""",
}
END = "\n    tt.return\n  }\n}\n"


@pytest.mark.parametrize("how", USED)
def test_memory_that_is_used_as_other_memory_says_is_found(how: str) -> None:
    assert (TABLE, INDEX) in uses(HEAD + PLAIN + USED[how] + END)


@pytest.mark.parametrize("how", COMPUTED)
def test_memory_that_is_computed_with_is_not_chosen(how: str) -> None:
    assert not [pair for pair in uses(HEAD + PLAIN + COMPUTED[how] + END) if pair[0] == TABLE]


def test_a_branch_that_adds_nothing_of_an_input_to_what_it_uses_is_found() -> None:
    """The other branch has loaded its values before."""
    further = "%sp = tt.addptr %y, %one : !tt.ptr<f32>, i32\n %w = tt.load %sp : !tt.ptr<f32>\n"
    both = f"""%v = scf.if %is -> (f32) {{
      %a = arith.addf %known, %made : f32
      scf.yield %a : f32
    }} else {{
      %b = arith.mulf %w, %made : f32
      scf.yield %b : f32
    }}
    {STORED}"""
    assert (TABLE, INDEX) in uses(HEAD + PLAIN + further + both + END)


def test_many_lookups_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    module = parse(HEAD + CHOSEN["by a sum"] + TAIL)
    assert lookups_of(module, "k")
    monkeypatch.setattr(lookups, "MAX_LOOKUPS", 1)
    with pytest.raises(InvalidModule, match="many"):
        lookups_of(module, "k")


def test_values_that_go_around_a_loop_too_often_are_refused() -> None:
    """Each pass hands a value on by one of the loop's hundred."""
    num = 100
    names, kinds = [f"%a{n}" for n in range(num)], ", ".join(["i32"] * num)
    first = ["%zero"] * (num - 1) + ["%at"]
    loop = (
        f"%r:{num} = scf.for %i = %zero to %one step %one iter_args("
        + ", ".join(f"{one} = {of}" for one, of in zip(names, first, strict=True))
        + f") -> ({kinds}) : i32 {{ scf.yield {', '.join([*names[1:], '%zero'])} : {kinds} }}\n"
    )
    with pytest.raises(InvalidModule, match="loops"):
        lookups_of(parse(HEAD + loop + "%place = arith.addi %at, %one : i32" + TAIL), "k")
