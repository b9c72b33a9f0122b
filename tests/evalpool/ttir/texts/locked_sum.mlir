module {
  tt.func public @red(%arg0: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %arg1: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %arg2: !tt.ptr<i32> {tt.divisibility = 16 : i32}, %arg3: !tt.ptr<i32> {tt.divisibility = 16 : i32}, %arg4: i32) attributes {noinline = false} {
    %true = arith.constant true
    %c1_i32 = arith.constant 1 : i32
    %c0_i32 = arith.constant 0 : i32
    %cst = arith.constant dense<0.000000e+00> : tensor<128xf32>
    %c4_i32 = arith.constant 4 : i32
    %0 = tt.get_program_id x : i32
    %1 = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32>
    %2 = tt.splat %arg4 : i32 -> tensor<128xi32>
    %3 = arith.cmpi slt, %1, %2 : tensor<128xi32>
    %4 = arith.remsi %0, %c4_i32 : i32
    %5 = arith.muli %0, %arg4 : i32
    %6 = tt.addptr %arg0, %5 : !tt.ptr<f32>, i32
    %7 = tt.splat %6 : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
    %8 = tt.addptr %7, %1 : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
    %9 = tt.load %8, %3, %cst : tensor<128x!tt.ptr<f32>>
    %10 = tt.addptr %arg2, %4 : !tt.ptr<i32>, i32
    scf.while : () -> () {
      %20 = tt.atomic_cas acq_rel, gpu, %10, %c0_i32, %c1_i32 : (!tt.ptr<i32>, i32, i32) -> i32
      %21 = arith.cmpi eq, %20, %c1_i32 : i32
      scf.condition(%21)
    } do {
      scf.yield
    }
    %11 = tt.addptr %arg3, %4 : !tt.ptr<i32>, i32
    %12 = tt.load %11 : !tt.ptr<i32>
    %13 = arith.cmpi eq, %12, %c0_i32 : i32
    %14 = scf.if %13 -> (tensor<128xf32>) {
      %20 = tt.atomic_rmw exch, acq_rel, gpu, %11, %c1_i32, %true : (!tt.ptr<i32>, i32, i1) -> i32
      scf.yield %9 : tensor<128xf32>
    } else {
      %20 = arith.muli %4, %arg4 : i32
      %21 = tt.addptr %arg1, %20 : !tt.ptr<f32>, i32
      %22 = tt.splat %21 : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
      %23 = tt.addptr %22, %1 : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
      %24 = tt.load %23, %3 : tensor<128x!tt.ptr<f32>>
      %25 = arith.addf %9, %24 : tensor<128xf32>
      scf.yield %25 : tensor<128xf32>
    }
    %15 = arith.muli %4, %arg4 : i32
    %16 = tt.addptr %arg1, %15 : !tt.ptr<f32>, i32
    %17 = tt.splat %16 : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
    %18 = tt.addptr %17, %1 : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
    tt.store %18, %14, %3 : tensor<128x!tt.ptr<f32>>
    ttg.barrier all
    %19 = tt.atomic_rmw exch, acq_rel, gpu, %10, %c0_i32, %true : (!tt.ptr<i32>, i32, i1) -> i32
    tt.return
  }
}
