module {
  tt.func public @col(%arg0: !tt.ptr<i32> {tt.divisibility = 16 : i32}, %arg1: !tt.ptr<i32> {tt.divisibility = 16 : i32}) attributes {noinline = false} {
    %c3_i32 = arith.constant 3 : i32
    %c2_i32 = arith.constant 2 : i32
    %c1_i32 = arith.constant 1 : i32
    %c0_i32 = arith.constant 0 : i32
    %0 = tt.get_program_id x : i32
    %1 = tt.addptr %arg0, %0 : !tt.ptr<i32>, i32
    %2 = tt.load %1 : !tt.ptr<i32>
    %3:2 = scf.while (%arg2 = %2, %arg3 = %c0_i32) : (i32, i32) -> (i32, i32) {
      %5 = arith.cmpi ne, %arg2, %c1_i32 : i32
      scf.condition(%5) %arg2, %arg3 : i32, i32
    } do {
    ^bb0(%arg2: i32, %arg3: i32):
      %5 = arith.remsi %arg2, %c2_i32 : i32
      %6 = arith.cmpi eq, %5, %c0_i32 : i32
      %7 = scf.if %6 -> (i32) {
        %9 = arith.divsi %arg2, %c2_i32 : i32
        scf.yield %9 : i32
      } else {
        %9 = arith.muli %arg2, %c3_i32 : i32
        %10 = arith.addi %9, %c1_i32 : i32
        scf.yield %10 : i32
      }
      %8 = arith.addi %arg3, %c1_i32 : i32
      scf.yield %7, %8 : i32, i32
    }
    %4 = tt.addptr %arg1, %0 : !tt.ptr<i32>, i32
    tt.store %4, %3#1 : !tt.ptr<i32>
    tt.return
  }
}
