"""Passes over modules."""

import pytest
import torch

from smelt import relax, te
from smelt.relax import BlockBuilder, RelaxError, transform
from smelt.script.module import PrimFunc
from tests.relax.test_builder import te_relu, tensor

op = relax.op


def module(emit, *params):
    bb = BlockBuilder()
    with bb.function("main", list(params)):
        bb.emit_func_output(emit(bb))
    return bb.get()


def texts(mod) -> list[str]:
    return [str(binding.value) for binding in mod["main"].body.bindings]


def test_names_of_primfuncs_are_those_of_topi() -> None:
    x, w = tensor("x", 2, 6), relax.const(torch.randn(5, 6))

    def emit(bb):
        y = bb.emit(op.nn.relu(op.linear(x, w, relax.const(torch.randn(5)))))
        return bb.emit(op.linear(y, relax.const(torch.randn(4, 5)), relax.const(torch.randn(4))))

    before = module(emit, x)
    legal = transform.LegalizeOps()(before)
    names = {var.name_hint for var in legal}
    assert names == {"main", "add", "add1", "matmul", "matmul1", "relu", "transpose", "transpose1"}
    assert all("R.call_tir(" in text for text in texts(legal))
    assert [var.name_hint for var in before] == ["main"]
    kernel = legal["matmul"].kernel
    assert [param.name for param in kernel.params] == ["x", "gv", "T_matmul"]
    a = torch.randn(2, 6)
    want = relax.VirtualMachine(relax.build(before))["main"](a)
    torch.testing.assert_close(relax.VirtualMachine(relax.build(legal))["main"](a), want)


def test_equal_operators_share_a_primfunc_and_constants_are_written_into_it() -> None:
    x, y = tensor("x", 2, 3), tensor("y", 2, 3)
    mod = transform.LegalizeOps()(module(lambda bb: bb.emit(op.multiply(op.multiply(x, 2.0 * y), y)), x, y))
    funcs = [each for each in mod.values() if isinstance(each, PrimFunc)]
    assert len(funcs) == 2
    assert texts(mod)[0].startswith("R.call_tir(cls.multiply, (y,)")


def test_an_operator_may_be_legalized_otherwise() -> None:
    x, y = tensor("x", 2, 3), tensor("y", 3)

    def swapped(bb, call):
        def te_subtract(a, b):
            return te.compute(b.shape, lambda i, j: a[j] - b[i, j], name="swapped")

        return bb.call_te(te_subtract, call.args[1], call.args[0])

    mod = module(lambda bb: bb.emit(op.subtract(x, y)), x, y)
    legal = transform.LegalizeOps({"relax.subtract": swapped})(mod)
    a, b = torch.randn(2, 3), torch.randn(3)
    torch.testing.assert_close(relax.VirtualMachine(relax.build(legal))["main"](a, b), b - a)


def test_sizes_that_are_variables_stay_variables() -> None:
    x = tensor("x", te.var("n"), 4)
    legal = transform.LegalizeOps()(module(lambda bb: bb.emit(op.nn.softmax(x)), x))
    (func,) = [each for each in legal.values() if isinstance(each, PrimFunc)]
    assert [str(size) for size in func.kernel.sizes] == ["n"]
    main = relax.VirtualMachine(relax.build(legal))["main"]
    for rows in (1, 3):
        a = torch.randn(rows, 4)
        torch.testing.assert_close(main(a), torch.softmax(a, -1))


def test_what_is_not_known_stays_an_operator() -> None:
    x = relax.Var("x", relax.TensorStructInfo(None, "float32", ndim=2))
    assert texts(transform.LegalizeOps()(module(lambda bb: bb.emit(op.exp(x)), x))) == ["R.exp(x)"]


def test_dead_bindings_and_functions_go() -> None:
    x = tensor("x", 4)

    def emit(bb):
        bb.emit_te(te_relu, x)
        return bb.emit(op.exp(x))

    mod = module(emit, x)
    clean = transform.DeadCodeElimination()(mod)
    assert texts(clean) == ["R.exp(x)"]
    kept = transform.DeadCodeElimination(["main"])(mod)
    assert [var.name_hint for var in kept] == ["main"]


def test_constants_are_folded() -> None:
    x, c = tensor("x", 2), relax.const(torch.tensor([1.0, 2.0]))
    mod = transform.FoldConstant()(module(lambda bb: bb.emit(op.add(x, op.multiply(c, c))), x))
    (binding,) = mod["main"].body.bindings
    assert torch.equal(binding.value.args[1].data, torch.tensor([1.0, 4.0]))


def test_parameters_are_bound_and_aliases_go() -> None:
    x, y = tensor("x", 2), tensor("y", 2)
    passes = transform.Sequential(
        [transform.BindParams("main", {"y": torch.ones(2)}), transform.CanonicalizeBindings()]
    )
    mod = passes(module(lambda bb: bb.emit(bb.emit(op.add(x, bb.emit(y)))), x, y))
    assert [each.name_hint for each in mod["main"].params] == ["x"]
    assert len(texts(mod)) == 1
    assert torch.equal(relax.VirtualMachine(relax.build(mod))["main"](torch.zeros(2)), torch.ones(2))


def test_passes_of_ones_own() -> None:
    x = tensor("x", 2)
    seen = []

    @transform.function_pass(opt_level=1)
    def look(func, mod, context):
        seen.append(func)
        return func

    mod = module(lambda bb: bb.emit(op.exp(x)), x)
    assert look(mod)["main"] == mod["main"]
    assert len(seen) == 1
    with pytest.raises(RelaxError, match="SM1306: LegalizeOps takes a module, not a Function"):
        transform.LegalizeOps()(mod["main"])
