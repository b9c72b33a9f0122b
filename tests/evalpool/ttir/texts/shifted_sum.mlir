module {
  tt.func public @k(%arg0: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %arg1: i32 {tt.divisibility = 16 : i32}) attributes {noinline = false} {
    %cst = arith.constant dense<1> : tensor<128xi32>
    %c128_i32 = arith.constant 128 : i32
    %0 = tt.get_program_id x : i32
    %1 = arith.muli %0, %c128_i32 : i32
    %2 = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32>
    %3 = tt.splat %1 : i32 -> tensor<128xi32>
    %4 = arith.addi %3, %2 : tensor<128xi32>
    %5 = tt.splat %arg0 : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
    %6 = tt.addptr %5, %4 : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
    %7 = tt.load %6 : tensor<128x!tt.ptr<f32>>
    %8 = tt.splat %arg1 : i32 -> tensor<128xi32>
    %9 = arith.addi %4, %8 : tensor<128xi32>
    %10 = arith.subi %9, %cst : tensor<128xi32>
    %11 = arith.remsi %10, %8 : tensor<128xi32>
    %12 = tt.addptr %5, %11 : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
    %13 = tt.load %12 : tensor<128x!tt.ptr<f32>>
    %14 = arith.addf %7, %13 : tensor<128xf32>
    tt.store %6, %14 : tensor<128x!tt.ptr<f32>>
    tt.return
  }
}
