module {
  tt.func public @attn(%arg0: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %arg1: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %arg2: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %arg3: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %arg4: i32 {tt.divisibility = 16 : i32}, %arg5: i32 {tt.divisibility = 16 : i32}, %arg6: f32, %arg7: i32) attributes {noinline = false} {
    %cst = arith.constant dense<0.000000e+00> : tensor<32xf32>
    %c0_i32 = arith.constant 0 : i32
    %cst_0 = arith.constant dense<0.000000e+00> : tensor<32x64xf16>
    %cst_1 = arith.constant dense<0xFF800000> : tensor<32x32xf32>
    %cst_2 = arith.constant dense<0.000000e+00> : tensor<32x32xf32>
    %c1_i32 = arith.constant 1 : i32
    %cst_3 = arith.constant dense<0xFF800000> : tensor<32xf32>
    %cst_4 = arith.constant dense<0.000000e+00> : tensor<32x64xf32>
    %c32_i32 = arith.constant 32 : i32
    %0 = tt.get_program_id x : i32
    %1 = tt.get_program_id y : i32
    %2 = arith.muli %0, %c32_i32 : i32
    %3 = tt.make_range {end = 32 : i32, start = 0 : i32} : tensor<32xi32>
    %4 = tt.splat %2 : i32 -> tensor<32xi32>
    %5 = arith.addi %4, %3 : tensor<32xi32>
    %6 = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %7 = tt.expand_dims %5 {axis = 1 : i32} : tensor<32xi32> -> tensor<32x1xi32>
    %8 = tt.splat %arg7 : i32 -> tensor<32x1xi32>
    %9 = arith.cmpi slt, %7, %8 : tensor<32x1xi32>
    %10 = arith.muli %1, %arg4 : i32
    %11 = tt.addptr %arg0, %10 : !tt.ptr<f16>, i32
    %12 = tt.splat %arg5 : i32 -> tensor<32x1xi32>
    %13 = arith.muli %7, %12 : tensor<32x1xi32>
    %14 = tt.splat %11 : !tt.ptr<f16> -> tensor<32x1x!tt.ptr<f16>>
    %15 = tt.addptr %14, %13 : tensor<32x1x!tt.ptr<f16>>, tensor<32x1xi32>
    %16 = tt.expand_dims %6 {axis = 0 : i32} : tensor<64xi32> -> tensor<1x64xi32>
    %17 = tt.broadcast %15 : tensor<32x1x!tt.ptr<f16>> -> tensor<32x64x!tt.ptr<f16>>
    %18 = tt.broadcast %16 : tensor<1x64xi32> -> tensor<32x64xi32>
    %19 = tt.addptr %17, %18 : tensor<32x64x!tt.ptr<f16>>, tensor<32x64xi32>
    %20 = tt.broadcast %9 : tensor<32x1xi1> -> tensor<32x64xi1>
    %21 = tt.load %19, %20, %cst_0 : tensor<32x64x!tt.ptr<f16>>
    %22 = arith.addi %0, %c1_i32 : i32
    %23 = arith.muli %22, %c32_i32 : i32
    %24 = arith.minsi %23, %arg7 : i32
    %25:3 = scf.for %arg8 = %c0_i32 to %24 step %c32_i32 iter_args(%arg9 = %cst_3, %arg10 = %cst, %arg11 = %cst_4) -> (tensor<32xf32>, tensor<32xf32>, tensor<32x64xf32>)  : i32 {
      %35 = tt.splat %arg8 : i32 -> tensor<32xi32>
      %36 = arith.addi %35, %3 : tensor<32xi32>
      %37 = tt.expand_dims %36 {axis = 1 : i32} : tensor<32xi32> -> tensor<32x1xi32>
      %38 = arith.cmpi slt, %37, %8 : tensor<32x1xi32>
      %39 = tt.addptr %arg1, %10 : !tt.ptr<f16>, i32
      %40 = arith.muli %37, %12 : tensor<32x1xi32>
      %41 = tt.splat %39 : !tt.ptr<f16> -> tensor<32x1x!tt.ptr<f16>>
      %42 = tt.addptr %41, %40 : tensor<32x1x!tt.ptr<f16>>, tensor<32x1xi32>
      %43 = tt.broadcast %42 : tensor<32x1x!tt.ptr<f16>> -> tensor<32x64x!tt.ptr<f16>>
      %44 = tt.addptr %43, %18 : tensor<32x64x!tt.ptr<f16>>, tensor<32x64xi32>
      %45 = tt.broadcast %38 : tensor<32x1xi1> -> tensor<32x64xi1>
      %46 = tt.load %44, %45, %cst_0 : tensor<32x64x!tt.ptr<f16>>
      %47 = tt.addptr %arg2, %10 : !tt.ptr<f16>, i32
      %48 = tt.splat %47 : !tt.ptr<f16> -> tensor<32x1x!tt.ptr<f16>>
      %49 = tt.addptr %48, %40 : tensor<32x1x!tt.ptr<f16>>, tensor<32x1xi32>
      %50 = tt.broadcast %49 : tensor<32x1x!tt.ptr<f16>> -> tensor<32x64x!tt.ptr<f16>>
      %51 = tt.addptr %50, %18 : tensor<32x64x!tt.ptr<f16>>, tensor<32x64xi32>
      %52 = tt.load %51, %45, %cst_0 : tensor<32x64x!tt.ptr<f16>>
      %53 = tt.trans %46 {order = array<i32: 1, 0>} : tensor<32x64xf16> -> tensor<64x32xf16>
      %54 = tt.dot %21, %53, %cst_2, inputPrecision = tf32 : tensor<32x64xf16> * tensor<64x32xf16> -> tensor<32x32xf32>
      %55 = tt.splat %arg6 : f32 -> tensor<32x32xf32>
      %56 = arith.mulf %54, %55 : tensor<32x32xf32>
      %57 = tt.expand_dims %36 {axis = 0 : i32} : tensor<32xi32> -> tensor<1x32xi32>
      %58 = tt.splat %arg7 : i32 -> tensor<1x32xi32>
      %59 = arith.cmpi slt, %57, %58 : tensor<1x32xi32>
      %60 = tt.broadcast %7 : tensor<32x1xi32> -> tensor<32x32xi32>
      %61 = tt.broadcast %57 : tensor<1x32xi32> -> tensor<32x32xi32>
      %62 = arith.cmpi sge, %60, %61 : tensor<32x32xi32>
      %63 = tt.broadcast %59 : tensor<1x32xi1> -> tensor<32x32xi1>
      %64 = arith.andi %63, %62 : tensor<32x32xi1>
      %65 = arith.select %64, %56, %cst_1 : tensor<32x32xi1>, tensor<32x32xf32>
      %66 = "tt.reduce"(%65) <{axis = 1 : i32}> ({
      ^bb0(%arg12: f32, %arg13: f32):
        %82 = arith.maxnumf %arg12, %arg13 : f32
        tt.reduce.return %82 : f32
      }) : (tensor<32x32xf32>) -> tensor<32xf32>
      %67 = arith.maxnumf %arg9, %66 : tensor<32xf32>
      %68 = arith.subf %arg9, %67 : tensor<32xf32>
      %69 = math.exp %68 : tensor<32xf32>
      %70 = tt.expand_dims %67 {axis = 1 : i32} : tensor<32xf32> -> tensor<32x1xf32>
      %71 = tt.broadcast %70 : tensor<32x1xf32> -> tensor<32x32xf32>
      %72 = arith.subf %65, %71 : tensor<32x32xf32>
      %73 = math.exp %72 : tensor<32x32xf32>
      %74 = arith.mulf %arg10, %69 : tensor<32xf32>
      %75 = "tt.reduce"(%73) <{axis = 1 : i32}> ({
      ^bb0(%arg12: f32, %arg13: f32):
        %82 = arith.addf %arg12, %arg13 : f32
        tt.reduce.return %82 : f32
      }) : (tensor<32x32xf32>) -> tensor<32xf32>
      %76 = arith.addf %74, %75 : tensor<32xf32>
      %77 = tt.expand_dims %69 {axis = 1 : i32} : tensor<32xf32> -> tensor<32x1xf32>
      %78 = tt.broadcast %77 : tensor<32x1xf32> -> tensor<32x64xf32>
      %79 = arith.mulf %arg11, %78 : tensor<32x64xf32>
      %80 = arith.truncf %73 : tensor<32x32xf32> to tensor<32x32xf16>
      %81 = tt.dot %80, %52, %79, inputPrecision = tf32 : tensor<32x32xf16> * tensor<32x64xf16> -> tensor<32x64xf32>
      scf.yield %67, %76, %81 : tensor<32xf32>, tensor<32xf32>, tensor<32x64xf32>
    }
    %26 = tt.addptr %arg3, %10 : !tt.ptr<f16>, i32
    %27 = tt.splat %26 : !tt.ptr<f16> -> tensor<32x1x!tt.ptr<f16>>
    %28 = tt.addptr %27, %13 : tensor<32x1x!tt.ptr<f16>>, tensor<32x1xi32>
    %29 = tt.broadcast %28 : tensor<32x1x!tt.ptr<f16>> -> tensor<32x64x!tt.ptr<f16>>
    %30 = tt.addptr %29, %18 : tensor<32x64x!tt.ptr<f16>>, tensor<32x64xi32>
    %31 = tt.expand_dims %25#1 {axis = 1 : i32} : tensor<32xf32> -> tensor<32x1xf32>
    %32 = tt.broadcast %31 : tensor<32x1xf32> -> tensor<32x64xf32>
    %33 = arith.divf %25#2, %32 : tensor<32x64xf32>
    %34 = arith.truncf %33 : tensor<32x64xf32> to tensor<32x64xf16>
    tt.store %30, %34, %20 : tensor<32x64x!tt.ptr<f16>>
    tt.return
  }
}
