module {
  tt.func public @k(%arg0: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %arg1: !tt.ptr<f32> {tt.divisibility = 16 : i32}) attributes {noinline = false} {
    %c64_i32 = arith.constant 64 : i32
    %0 = tt.get_program_id x : i32
    %1 = tt.addptr %arg1, %0 : !tt.ptr<f32>, i32
    %2 = arith.muli %0, %c64_i32 : i32
    %3 = tt.addptr %arg0, %2 : !tt.ptr<f32>, i32
    %4 = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %5 = tt.splat %3 : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %6 = tt.addptr %5, %4 : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %7 = tt.load %6 : tensor<64x!tt.ptr<f32>>
    %8 = "tt.reduce"(%7) <{axis = 0 : i32}> ({
    ^bb0(%arg2: f32, %arg3: f32):
      %9 = arith.cmpf ogt, %arg2, %arg3 : f32
      %10 = arith.select %9, %arg2, %arg3 : f32
      tt.reduce.return %10 : f32
    }) : (tensor<64xf32>) -> f32
    tt.store %1, %8 : !tt.ptr<f32>
    tt.return
  }
}
