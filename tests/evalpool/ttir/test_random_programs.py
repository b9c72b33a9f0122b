"""Random kernels compute what one lane after the other computes."""

from random import Random

import numpy as np
import pytest

from forge.evalpool.judge.ttir.evaluate import Order
from tests.evalpool.ttir.kernels import kernel, pointers, run
from tests.evalpool.ttir.random_programs import LANES, Writer, mixed, statements
from tests.evalpool.ttir.random_programs import run as reference

INSTANCES = 7


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("seed", range(30))
def test_all_instances_at_once_compute_what_each_lane_does(seed: int, order: Order) -> None:
    body = statements(Random(seed), depth=2, known=3)
    x = np.random.default_rng(0).integers(-(2**31), 2**31, LANES * INSTANCES, np.int32)
    y = np.zeros_like(x)
    writer = Writer(["%x.value", "%i", "%pids"])
    for one in body:
        writer.write(one)
    result = writer.mixed()
    source = kernel(
        "%x: !tt.ptr<i32>, %y: !tt.ptr<i32>",
        pointers("x", kind="i32")
        + pointers("y", kind="i32")
        + "    %x.value = tt.load %x.at : tensor<16x!tt.ptr<i32>>\n"
        + "    %pids = tt.splat %pid : i32 -> tensor<16xi32>\n"
        + "\n".join(writer.lines)
        + f"\n    tt.store %y.at, {result} : tensor<16x!tt.ptr<i32>>",
    )
    run(source, INSTANCES, x, y, order=order)
    for pid in range(INSTANCES):
        lanes = list(range(pid * LANES, (pid + 1) * LANES))
        known = [[int(one) for one in x[lanes]], lanes, [pid] * LANES]
        reference(body, known, pid)  # adds its variables
        assert list(y[lanes]) == mixed(known), source
