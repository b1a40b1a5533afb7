"""`build` and `VirtualMachine`: numbers, arguments, what is compiled together; what is refused."""

import numpy as np
import pytest
import torch

import smelt
from smelt import relax, te
from smelt.nest.ir import LoopKind
from smelt.nest.tree import loops, replace_loop
from smelt.records import replace
from smelt.relax import BlockBuilder, RelaxError, TensorStructInfo, Var, transform
from smelt.relax.evaluate import Evaluator
from smelt.relax.primfuncs import call_primfunc
from tests.relax.test_builder import te_relu, tensor

op = relax.op


def one(call, *params: Var):
    bb = BlockBuilder()
    with bb.function("main", list(params)):
        bb.emit_func_output(bb.emit(call))
    return bb.get()


def test_arrays_and_tensors_in_tensors_out() -> None:
    x = tensor("x", 2, 3)
    main = relax.VirtualMachine(relax.build(one(op.exp(x), x)))["main"]
    a = torch.randn(3, 2)
    torch.testing.assert_close(main(a.t()), a.t().exp())
    torch.testing.assert_close(main(a.t().numpy()), a.t().exp())


def test_tuples_and_numbers_as_arguments_and_results() -> None:
    x = Var("x", relax.TupleStructInfo([TensorStructInfo((2,)), TensorStructInfo((2,))]))
    k = Var("k", relax.ShapeStructInfo(ndim=2))
    bb = BlockBuilder()
    with bb.function("main", [x, k]):
        y = bb.emit(op.add(x[0], x[1]))
        bb.emit_func_output((y, (x[0], bb.emit(op.broadcast_to(y, k)))))
    a, b = torch.randn(2), torch.randn(2)
    first, (second, wide) = relax.VirtualMachine(relax.build(bb.get()))["main"]((a, b), (3, 2))
    torch.testing.assert_close(first, a + b)
    assert torch.equal(second, a)
    assert wide.shape == (3, 2)


def test_a_te_function_fuses_with_operators_around_it() -> None:
    x = tensor("x", 64, 64)
    bb = BlockBuilder()
    with bb.function("main", [x]):
        y = bb.emit_te(te_relu, op.multiply(x, x))
        bb.emit_func_output(bb.emit(op.subtract(y, x)))
    smelt.reset()
    main = relax.VirtualMachine(relax.build(bb.get()))["main"]
    a = torch.randn(64, 64)
    torch.testing.assert_close(main(a), torch.relu(a * a) - a)
    assert len(smelt.reports()[-1].kernels) == 1


def test_parameters_of_unknown_shape_are_compiled_for_what_is_given() -> None:
    x = Var("x", TensorStructInfo(None, "float32"))
    main = relax.VirtualMachine(relax.build(one(op.sum(x), x)))["main"]
    for shape in [(2, 3), (4,), ()]:
        a = torch.randn(shape)
        torch.testing.assert_close(main(a), a.sum())
    assert len(main.versions) == 3


def test_the_graph_is_an_fx_graph_of_aten_calls() -> None:
    x = tensor("x", 2, 3)
    program = relax.program_of(one(op.nn.relu(op.matmul(x, relax.const(np.ones((3, 2), "float32")))), x))
    calls = program.graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    assert len(calls) == 1
    assert isinstance(calls[0].meta["val"], torch.Tensor)
    assert [each.role for each in program.inputs] == ["constant", "user"]


def test_wrong_arguments_are_named() -> None:
    n = te.var("n")
    x, y = tensor("x", n, 3), tensor("y", n)
    main = relax.VirtualMachine(relax.build(one(op.matmul(y, x), x, y)))["main"]
    good = torch.randn(2, 3)
    with pytest.raises(RelaxError, match=r"SM1305: main takes 2 arguments \(x, y\), 1 are given"):
        main(good)
    with pytest.raises(RelaxError, match="SM1305: dimension 1 of argument x of main is 4"):
        main(torch.randn(2, 4), torch.randn(2))
    with pytest.raises(
        RelaxError, match=r"SM1305: dimension 0 of argument y of main is 5\n  why: it should be n = 2"
    ):
        main(good, torch.randn(5))
    with pytest.raises(RelaxError, match=r"SM1305: argument y of main is torch\.float64"):
        main(good, torch.randn(2).double())


def test_what_cannot_be_built_is_refused() -> None:
    x = tensor("x", 2)
    mod = one(op.exp(x), x)
    with pytest.raises(RelaxError, match="SM1306: target 'cuda'"):
        relax.build(mod, target="cuda")
    with pytest.raises(RelaxError, match=r"SM1306: no function 'mian'\n  why: there are: main"):
        relax.VirtualMachine(relax.build(mod))["mian"]
    bb = BlockBuilder()
    with bb.function("main", [x]):
        call = relax.Call(relax.ExternFunc("their.function"), [x], sinfo_args=[TensorStructInfo((2,))])
        bb.emit_func_output(bb.emit(call))
    with pytest.raises(RelaxError, match=r"SM1306: their.function is known by name only"):
        relax.build(bb.get())


def test_a_scheduled_function_runs_as_it_is_written() -> None:
    func = te.create_prim_func([a := te.placeholder((8,), name="a"), te_relu(a)])
    loop = loops(func.kernel.body)[0]
    body = replace_loop(func.kernel.body, loop.var, lambda each: (replace(each, kind=LoopKind.PARALLEL),))
    x = tensor("x", 8)
    bb = BlockBuilder()
    var = bb.add_func(replace(func, kernel=replace(func.kernel, body=body)), "f")
    with bb.function("main", [x]):
        y = bb.emit(relax.call_tir(var, (op.negative(x),), TensorStructInfo((8,), "float32")))
        bb.emit_func_output(y)
    value = torch.randn(8)
    torch.testing.assert_close(relax.VirtualMachine(relax.build(bb.get()))["main"](value), torch.relu(-value))


def test_sizes_that_no_tensor_tells_are_arguments() -> None:
    n, m = te.var("n"), te.var("m")
    x = tensor("x", m)
    mod = transform.LegalizeOps()(one(op.broadcast_to(x, (n * 2, m)), x, tensor("y", n)))
    text = mod["main"].script()
    assert "tir_vars=R.shape([n])" in text
    value = torch.randn(3)
    got = relax.VirtualMachine(relax.build(mod))["main"](value, torch.zeros(2))
    assert torch.equal(got, value.expand(4, 3))
    func = mod["broadcast_to"]
    with pytest.raises(RelaxError, match=r"SM1306: broadcast_to is called with 0 numbers[\s\S]*tells: n"):
        call_primfunc(func, [value], TensorStructInfo((4, 3), "float32"), Evaluator())
