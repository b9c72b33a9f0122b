"""Arguments of a kernel whose memory it reads at places that other memory names."""

from __future__ import annotations

import pytest

from forge.evalpool.judge.ttir.grammar.parser import parse
from forge.evalpool.judge.ttir.memory import lookups
from forge.evalpool.judge.ttir.memory.lookups import lookups_of
from forge.evalpool.judge.ttir.scan import InvalidModule

TABLE, INDEX, OUTPUT = 0, 1, 2
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
    assert (TABLE, INDEX) in lookups_of(parse(HEAD + CHOSEN[how] + TAIL), "k")


@pytest.mark.parametrize("how", NOT_CHOSEN)
def test_a_place_that_no_memory_chooses_is_none(how: str) -> None:
    assert lookups_of(parse(HEAD + NOT_CHOSEN[how] + TAIL), "k") == frozenset()


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
    assert lookups_of(parse(HEAD + body), "k") == {(TABLE, INDEX)}


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
    assert lookups_of(parse(HEAD + body), "k") == {(TABLE, INDEX)}


def test_reads_at_many_addresses_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 100,000 may be at any of 256 arguments."""
    body = "%place = arith.addi %at, %one : i32" + "\n %x = tt.load %np : !tt.ptr<i32>" * 5
    module = parse(HEAD + body.replace("%x", "%_") + TAIL)
    assert lookups_of(module, "k")
    monkeypatch.setattr(lookups, "MAX_REACHED", 6)
    with pytest.raises(InvalidModule, match="many"):
        lookups_of(module, "k")
