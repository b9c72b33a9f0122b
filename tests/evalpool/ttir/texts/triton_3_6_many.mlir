module {
  tt.func public @k1(%arg0: !tt.ptr<f32>, %arg1: !tt.ptr<f32>, %arg2: !tt.ptr<f32>, %arg3: i32, %arg4: f32, %arg5: i32) attributes {noinline = false} {
    %true = arith.constant true
    %c3_i32 = arith.constant 3 : i32
    %c1_i32 = arith.constant 1 : i32
    %cst = arith.constant dense<1.000000e+00> : tensor<128xf32>
    %cst_0 = arith.constant 1.000000e+00 : f32
    %cst_1 = arith.constant dense<2.000000e+00> : tensor<128xf32>
    %c100_i32 = arith.constant 100 : i32
    %c0_i32 = arith.constant 0 : i32
    %cst_2 = arith.constant dense<0.000000e+00> : tensor<128xf32>
    %cst_3 = arith.constant dense<0xFF800000> : tensor<128xf32>
    %c128_i32 = arith.constant 128 : i32
    %0 = tt.get_program_id x : i32
    %1 = arith.muli %0, %c128_i32 : i32
    %2 = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32>
    %3 = tt.splat %1 : i32 -> tensor<128xi32>
    %4 = arith.addi %3, %2 : tensor<128xi32>
    %5 = tt.splat %arg3 : i32 -> tensor<128xi32>
    %6 = arith.cmpi slt, %4, %5 : tensor<128xi32>
    %7 = tt.splat %arg0 : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
    %8 = tt.addptr %7, %4 : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
    %9 = tt.load %8, %6, %cst_3 : tensor<128x!tt.ptr<f32>>
    %10 = tt.splat %arg1 : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
    %11 = tt.addptr %10, %4 : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
    %12 = tt.load %11, %6, %cst_2 : tensor<128x!tt.ptr<f32>>
    %13 = scf.for %arg6 = %c0_i32 to %arg3 step %c128_i32 iter_args(%arg7 = %cst_2) -> (tensor<128xf32>)  : i32 {
      %47 = tt.splat %arg6 : i32 -> tensor<128xi32>
      %48 = arith.addi %47, %2 : tensor<128xi32>
      %49 = arith.cmpi slt, %48, %5 : tensor<128xi32>
      %50 = tt.addptr %arg0, %arg6 : !tt.ptr<f32>, i32
      %51 = tt.splat %50 : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
      %52 = tt.addptr %51, %2 : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
      %53 = tt.load %52, %49, %cst_2 : tensor<128x!tt.ptr<f32>>
      %54 = arith.addf %arg7, %53 : tensor<128xf32>
      %55 = arith.cmpi sgt, %arg6, %c100_i32 : i32
      %56 = scf.if %55 -> (tensor<128xf32>) {
        %57 = arith.mulf %54, %cst_1 : tensor<128xf32>
        scf.yield %57 : tensor<128xf32>
      } else {
        scf.yield %54 : tensor<128xf32>
      }
      scf.yield %56 : tensor<128xf32>
    }
    %14:2 = scf.while (%arg6 = %13, %arg7 = %c0_i32) : (tensor<128xf32>, i32) -> (tensor<128xf32>, i32) {
      %47 = arith.cmpi slt, %arg7, %0 : i32
      scf.condition(%47) %arg6, %arg7 : tensor<128xf32>, i32
    } do {
    ^bb0(%arg6: tensor<128xf32>, %arg7: i32):
      %47 = arith.addf %arg6, %cst : tensor<128xf32>
      %48 = arith.addi %arg7, %c1_i32 : i32
      scf.yield %47, %48 : tensor<128xf32>, i32
    }
    %15 = "tt.reduce"(%14#0) <{axis = 0 : i32}> ({
    ^bb0(%arg6: f32, %arg7: f32):
      %47 = arith.addf %arg6, %arg7 : f32
      tt.reduce.return %47 : f32
    }) : (tensor<128xf32>) -> f32
    %16 = "tt.reduce"(%9) <{axis = 0 : i32}> ({
    ^bb0(%arg6: f32, %arg7: f32):
      %47 = arith.maxnumf %arg6, %arg7 : f32
      tt.reduce.return %47 : f32
    }) : (tensor<128xf32>) -> f32
    %17:2 = "tt.reduce"(%9, %2) <{axis = 0 : i32}> ({
    ^bb0(%arg6: f32, %arg7: i32, %arg8: f32, %arg9: i32):
      %47 = arith.cmpf oeq, %arg6, %arg8 : f32
      %48 = arith.cmpi slt, %arg7, %arg9 : i32
      %49 = arith.andi %47, %48 : i1
      %50 = arith.cmpf ogt, %arg6, %arg8 : f32
      %51 = arith.ori %50, %49 : i1
      %52 = arith.select %51, %arg6, %arg8 : f32
      %53 = arith.select %51, %arg7, %arg9 : i32
      tt.reduce.return %52, %53 : f32, i32
    }) : (tensor<128xf32>, tensor<128xi32>) -> (f32, i32)
    %18 = "tt.scan"(%9) <{axis = 0 : i32, reverse = false}> ({
    ^bb0(%arg6: f32, %arg7: f32):
      %47 = arith.maxnumf %arg6, %arg7 : f32
      tt.scan.return %47 : f32
    }) : (tensor<128xf32>) -> tensor<128xf32>
    %19 = "tt.scan"(%9) <{axis = 0 : i32, reverse = false}> ({
    ^bb0(%arg6: f32, %arg7: f32):
      %47 = arith.addf %arg6, %arg7 : f32
      tt.scan.return %47 : f32
    }) : (tensor<128xf32>) -> tensor<128xf32>
    %20 = tt.splat %16 : f32 -> tensor<128xf32>
    %21 = arith.subf %9, %20 : tensor<128xf32>
    %22 = math.exp %21 : tensor<128xf32>
    %23 = tt.splat %15 : f32 -> tensor<128xf32>
    %24 = arith.addf %22, %23 : tensor<128xf32>
    %25 = arith.sitofp %17#1 : i32 to f32
    %26 = tt.splat %25 : f32 -> tensor<128xf32>
    %27 = arith.addf %24, %26 : tensor<128xf32>
    %28 = arith.addf %27, %18 : tensor<128xf32>
    %29 = arith.addf %28, %19 : tensor<128xf32>
    %30 = arith.subf %cst_2, %12 : tensor<128xf32>
    %31 = math.exp %30 : tensor<128xf32>
    %32 = arith.addf %31, %cst : tensor<128xf32>
    %33 = arith.divf %cst, %32 : tensor<128xf32>
    %34 = arith.addf %29, %33 : tensor<128xf32>
    %35 = arith.mulf %34, %cst_1 : tensor<128xf32>
    %36 = tt.splat %arg4 : f32 -> tensor<128xf32>
    %37 = arith.addf %35, %36 : tensor<128xf32>
    %38 = tt.call @mk.nohelp__fp32_i32__(%arg4, %arg3) : (f32, i32) -> f32
    %39 = tt.splat %38 : f32 -> tensor<128xf32>
    %40 = arith.addf %37, %39 : tensor<128xf32>
    %41 = arith.cmpi eq, %arg5, %c3_i32 : i32
    cf.cond_br %41, ^bb1, ^bb2
  ^bb1:  // pred: ^bb0
    tt.return
  ^bb2:  // pred: ^bb0
    %42 = tt.splat %arg2 : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
    %43 = tt.addptr %42, %4 : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
    tt.store %43, %40, %6 : tensor<128x!tt.ptr<f32>>
    %44 = tt.atomic_rmw fadd, acq_rel, gpu, %arg2, %cst_0, %true : (!tt.ptr<f32>, f32, i1) -> f32
    %45 = tt.bitcast %arg2 : !tt.ptr<f32> -> !tt.ptr<i32>
    %46 = tt.atomic_cas acq_rel, gpu, %45, %c0_i32, %c1_i32 : (!tt.ptr<i32>, i32, i32) -> i32
    tt.return
  }
  tt.func private @mk.nohelp__fp32_i32__(%arg0: f32, %arg1: i32) -> f32 attributes {noinline = true} {
    %cst = arith.constant 2.000000e+00 : f32
    %c3_i32 = arith.constant 3 : i32
    %0 = arith.cmpi sgt, %arg1, %c3_i32 : i32
    cf.cond_br %0, ^bb1, ^bb2
  ^bb1:  // pred: ^bb0
    %1 = arith.mulf %arg0, %cst : f32
    tt.return %1 : f32
  ^bb2:  // pred: ^bb0
    %2 = arith.sitofp %arg1 : i32 to f32
    %3 = arith.addf %arg0, %2 : f32
    tt.return %3 : f32
  }
}
