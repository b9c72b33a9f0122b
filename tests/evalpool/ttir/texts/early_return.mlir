module {
  tt.func public @k(%arg0: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %arg1: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %arg2: i32) attributes {noinline = false} {
    %0 = tt.get_program_id x : i32
    %1 = arith.cmpi sge, %0, %arg2 : i32
    cf.cond_br %1, ^bb1, ^bb2
  ^bb1:  // pred: ^bb0
    tt.return
  ^bb2:  // pred: ^bb0
    %2 = tt.addptr %arg1, %0 : !tt.ptr<f32>, i32
    %3 = tt.addptr %arg0, %0 : !tt.ptr<f32>, i32
    %4 = tt.load %3 : !tt.ptr<f32>
    %5 = tt.call @candidate.f__i32_fp32(%0, %4) : (i32, f32) -> f32
    tt.store %2, %5 : !tt.ptr<f32>
    tt.return
  }
  tt.func private @candidate.f__i32_fp32(%arg0: i32, %arg1: f32) -> f32 attributes {noinline = true} {
    %cst = arith.constant 1.000000e+00 : f32
    %c1_i32 = arith.constant 1 : i32
    %cst_0 = arith.constant 2.000000e+00 : f32
    %c0_i32 = arith.constant 0 : i32
    %c3_i32 = arith.constant 3 : i32
    %0 = arith.remsi %arg0, %c3_i32 : i32
    %1 = arith.cmpi eq, %0, %c0_i32 : i32
    cf.cond_br %1, ^bb1, ^bb2
  ^bb1:  // pred: ^bb0
    %2 = arith.mulf %arg1, %cst_0 : f32
    tt.return %2 : f32
  ^bb2:  // pred: ^bb0
    %3 = arith.cmpi eq, %0, %c1_i32 : i32
    cf.cond_br %3, ^bb3, ^bb4
  ^bb3:  // pred: ^bb2
    %4 = arith.addf %arg1, %cst : f32
    tt.return %4 : f32
  ^bb4:  // pred: ^bb2
    tt.return %arg1 : f32
  }
}
