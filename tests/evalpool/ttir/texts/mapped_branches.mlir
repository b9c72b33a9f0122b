module {
  tt.func public @k(%arg0: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %arg1: !tt.ptr<f32> {tt.divisibility = 16 : i32}) attributes {noinline = false} {
    %cst = arith.constant 0.000000e+00 : f32
    %cst_0 = arith.constant 2.000000e+00 : f32
    %cst_1 = arith.constant 1.000000e+00 : f32
    %c64_i32 = arith.constant 64 : i32
    %0 = tt.get_program_id x : i32
    %1 = arith.muli %0, %c64_i32 : i32
    %2 = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %3 = tt.splat %1 : i32 -> tensor<64xi32>
    %4 = arith.addi %3, %2 : tensor<64xi32>
    %5 = tt.splat %arg1 : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %6 = tt.addptr %5, %4 : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %7 = tt.splat %arg0 : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %8 = tt.addptr %7, %4 : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %9 = tt.load %8 : tensor<64x!tt.ptr<f32>>
    %10 = "tt.map_elementwise"(%9) <{pack = 1 : i32}> ({
    ^bb0(%arg2: f32):
      %11 = arith.cmpf ogt, %arg2, %cst : f32
      cf.cond_br %11, ^bb1, ^bb2
    ^bb1:  // pred: ^bb0
      %12 = arith.mulf %arg2, %cst_0 : f32
      cf.br ^bb3(%12 : f32)
    ^bb2:  // pred: ^bb0
      %13 = arith.subf %arg2, %cst_1 : f32
      cf.br ^bb3(%13 : f32)
    ^bb3(%14: f32):  // 2 preds: ^bb1, ^bb2
      tt.map_elementwise.return %14 : f32
    }) : (tensor<64xf32>) -> tensor<64xf32>
    tt.store %6, %10 : tensor<64x!tt.ptr<f32>>
    tt.return
  }
}
