import numpy as np, pytest, sys
import cupy_training_ops as cto
from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.families.gather import plan_columns
from cupy_training_ops.runtime.launch import launch_log
from cupy_training_ops.testing.compare import assert_matches, poison
from cupy_training_ops.families.gather import reference

@pytest.mark.parametrize("case", ["2d","part","outer","negative","same","f2","i32"])
def test_columns(run, rng, monkeypatch, case):
    monkeypatch.setattr(plan_columns,"LONG_SORT",1)
    monkeypatch.setattr(plan_columns,"MIN_ROWS",1)
    shape, ishape, axis, dt, it = (2100, 20), (300, 20), 0, np.float32, np.int64
    if case=="part": shape, ishape = (4500,33),(700,18)
    if case=="outer": shape, ishape, axis = (3, 900, 4, 6), (3, 100, 4, 6), 1
    if case=="f2": dt=np.float16; shape=(300,32); ishape=(600,32)
    if case=="i32": it=np.int32
    idx = rng.integers(-shape[axis]-2, shape[axis]+2, ishape).astype(it)
    if case=="same": idx = np.full(ishape, 7); idx[::3]=9
    dy = rng.standard_normal(ishape).astype(dt)
    out = poison(run.blank(Spec(shape, np.dtype(dt))))
    with launch_log() as log:
        get_op("GatherElementsGrad")(axis=axis)(run.place(dy), shape, run.place(idx), out=out)
    print(log)
    assert any("sum_buckets" in str(x) for x in log)
    exp = reference.gather_elements_grad(dy, shape, idx, axis=axis, deterministic=True, check=False)
    got = run.host(out)
    np.testing.assert_allclose(got.astype(float), exp.astype(float), rtol=1e-3 if dt==np.float16 else 1e-5, atol=1e-5 if dt==np.float32 else 2e-3)
