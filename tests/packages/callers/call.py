"""As call.c, and errors, threads, DLPack, memory of the caller's: python call.py WRITTEN FOLDER."""

import sys
import threading

import numpy as np
import small

assert "torch" not in sys.modules
model = small.load(threads=2)
x = (np.arange(15, dtype=np.float32) * np.float32(0.37) - 2).reshape(5, 3)
index = np.arange(5) ** 2
model(x, index)
out = [np.empty((5, 3), np.float32), None]
outputs = model(x=np.asfortranarray(x), type=list(index), out=out)
assert outputs.y is out[0] and outputs._fields == ("y", "flags")
states = model.states
with open(sys.argv[1], "wb") as file:
    for array in (*outputs, states["cache"], states["steps"]):
        file.write(array.tobytes())


def refused(kind, part, call):
    try:
        call()
    except kind as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"no error: {part}")


class Tensor:  # of another library
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def ones():
    return {"cache": np.ones((5, 2), np.float32), "steps": np.array(6)}


assert (model(Tensor(x), index, **ones()).y == outputs.y).all()
mine = ones()
y, flags = model(x, index, **mine)
assert mine["steps"] == 7 and (mine["cache"] == 2).all() and flags.dtype == bool
assert (np.from_dlpack(y) == y).all()
right = []


def many():
    for _ in range(100):
        right.append((model(x, index, **ones()).y == outputs.y).all())


threads = [threading.Thread(target=many) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(right) == 800 and all(right)

generic = small.numpy_model.Model(sys.argv[2])
assert (generic(x, type=index, **ones()).y == outputs.y).all()
assert [str(each) for each in generic.inputs] == ["float32 [batch, 3]", "int64 [batch]"]
assert [each.name for each in generic.state_infos] == ["cache", "steps"]
assert generic.new_states(batch=3)["steps"] == 5
assert generic.sizes == (("batch", 1, 64),)
refused(TypeError, "missing: type", lambda: generic(x))
refused(TypeError, "y is no input", lambda: generic(x, index, y=x))

refused(
    small.DtypeError,
    "x: dtype float64, expected float32; convert it: x.astype('float32')",
    lambda: model(x.astype(float), index),
)
refused(small.DtypeError, "type: dtype int32", lambda: model(x, index.astype(np.int32)))
refused(small.DtypeError, "x: list is no array of float32", lambda: model(["a"], index))
refused(small.ShapeError, "x: shape [15], expected float32 [batch, 3]", lambda: model(x.ravel(), index))
refused(small.ShapeError, "x", lambda: model(x[:, :2], index, **ones()))
refused(
    small.ShapeError,
    "batch",
    lambda: model(
        np.ones((65, 3), np.float32), np.ones(65, int), cache=np.ones((65, 2), np.float32), steps=np.array(0)
    ),
)
refused(small.ShapeError, "type", lambda: model(x, index[:4], **ones()))
refused(small.ShapeError, "cache", lambda: model(x, index, cache=np.ones((4, 2), np.float32)))
four = [np.ones((4, 3), np.float32), None]
refused(small.ShapeError, "out: y has shape [4, 3]", lambda: model(x, index, out=four))
refused(small.ModelError, "must be writable", lambda: model(x, index, cache=np.ones((2, 5), np.float32).T))
refused(small.ModelError, "share memory", lambda: model(x, index, out={"y": x}))
refused(small.ModelError, "share memory", lambda: model(x, index, out={"y": x.ravel().reshape(5, 3)}))
refused(small.ModelError, "no output z", lambda: model(x, index, out={"z": x}))
refused(small.ModelError, "1 arrays", lambda: model(x, index, out=x))
refused(TypeError, "written in place", lambda: model(x, index, cache=[1]))
refused(small.ModelError, "index out of range", lambda: model(x, index - 1))
refused(small.LoadError, "x86-64-v9", lambda: small.load(level="x86-64-v9"))
model.states["chache"] = x
refused(small.ModelError, "no state chache; states: cache, steps", lambda: model(x, index))
