"""`BlockBuilder`: bindings, scopes, te functions; errors name the variable and say what to do."""

from typing import Any

import pytest
import torch
from sympy import Symbol

from smelt import relax, te, topi
from smelt.relax import BlockBuilder, DataflowVar, RelaxError, TensorStructInfo, Var
from smelt.script.module import IRModule, PrimFunc

op = relax.op


def te_matmul(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, a.shape[1]), name="k")
    return te.compute((a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")


def te_relu(a: te.Tensor) -> te.Tensor:
    return te.compute(a.shape, lambda *i: te.max(a(*i), 0), name="relu")


def tensor(name: str, *shape: object, dtype: str = "float32") -> Var:
    return Var(name, TensorStructInfo(shape, dtype))


def size(name: str) -> Symbol:
    return Symbol(name, integer=True, nonnegative=True)


def matmul_relu(params_first: bool) -> IRModule:
    A, B = te.placeholder((16, 24), name="A"), te.placeholder((24, 8), name="B")
    bb = BlockBuilder()
    with bb.function("main", params=[A, B]) if params_first else bb.function("main"):
        with bb.dataflow():
            C = bb.emit_te(te_matmul, A, B)
            R = bb.emit_output(bb.emit_te(te_relu, C))
        bb.emit_func_output(R) if params_first else bb.emit_func_output(R, params=[A, B])
    assert isinstance(C, DataflowVar)
    assert not isinstance(R, DataflowVar)
    return bb.get()


TEXT = """\
    cls = Module
    with R.dataflow():
        lv = R.call_tir(cls.te_matmul, (A, B), out_sinfo=R.Tensor((16, 8), dtype="float32"))
        lv1 = R.call_tir(cls.te_relu, (lv,), out_sinfo=R.Tensor((16, 8), dtype="float32"))
        gv: R.Tensor((16, 8), dtype="float32") = lv1
        R.output(gv)
    return gv
"""


@pytest.mark.parametrize("params_first", [True, False])
def test_te_placeholders_are_the_functions_variables(params_first: bool) -> None:
    mod = matmul_relu(params_first)
    assert TEXT in mod["main"].script()
    assert {var.name_hint for var in mod} == {"main", "te_matmul", "te_relu"}
    assert [param.name for param in mod["te_relu"].kernel.params] == ["lv", "relu"]
    a, b = torch.randn(16, 24), torch.randn(24, 8)
    torch.testing.assert_close(relax.VirtualMachine(relax.build(mod))["main"](a, b), torch.relu(a @ b))


def test_parameters_at_the_beginning_or_at_the_end_are_the_same() -> None:
    assert matmul_relu(True)["main"] == matmul_relu(False)["main"]


def test_equal_te_functions_are_one_and_others_are_numbered() -> None:
    x, y, z = tensor("x", 4, 3), tensor("y", 4, 3), tensor("z", 3, 4)
    bb = BlockBuilder()
    with bb.function("main", [x, y, z]):
        results = [bb.emit_te(te_relu, each) for each in (x, y, z)]
        bb.emit_func_output(results)
    mod = bb.get()
    called = [binding.value.args[0].name_hint for binding in mod["main"].body.bindings]
    assert called == ["te_relu", "te_relu", "te_relu1"]
    assert sum(isinstance(each, PrimFunc) for each in mod.values()) == 2


def test_names_of_constants_are_letters_by_their_place() -> None:
    x = tensor("x", 4, 3)
    bb = BlockBuilder()
    with bb.function("main", [x]):
        out = bb.emit_te(te_matmul, x, relax.const(torch.ones(3, 5)))
        bb.emit_func_output(out)
    assert [param.name for param in bb.get()["te_matmul"].kernel.params] == ["x", "B", "matmul"]


def test_te_functions_take_lists_dictionaries_and_numbers() -> None:
    x, y = tensor("x", 4), tensor("y", 4)

    def function(both: list[te.Tensor], more: dict[str, te.Tensor], scale: int, unused: str) -> te.Tensor:
        return te.compute((4,), lambda i: both[0][i] + more["y"][i] * scale, name="out")

    bb = BlockBuilder()
    with bb.function("main", [x, y]):
        bb.emit_func_output(bb.emit_te(function, [x], {"y": y}, scale=3, unused="text"))
    a, b = torch.randn(4), torch.randn(4)
    torch.testing.assert_close(relax.VirtualMachine(relax.build(bb.get()))["main"](a, b), a + 3 * b)


def test_several_results_of_one_te_function() -> None:
    x = tensor("x", 4)

    def function(a: te.Tensor) -> list[te.Tensor]:
        b = te.compute((4,), lambda i: a[i] + 1.0, name="B")
        return [b, te.compute((4,), lambda i: b[i] * 2.0, name="C")]

    bb = BlockBuilder()
    with bb.function("main", [x]):
        y = bb.emit_te(function, x)
        bb.emit_func_output((y[1], y[0]))
    a = torch.randn(4)
    second, first = relax.VirtualMachine(relax.build(bb.get()))["main"](a)
    torch.testing.assert_close(first, a + 1)
    torch.testing.assert_close(second, (a + 1) * 2)


def test_sizes_that_are_variables() -> None:
    n, m = te.var("n"), te.var("m")
    x, y = tensor("x", n, m), tensor("y", m)
    bb = BlockBuilder()
    with bb.function("main", [x, y]):
        with bb.dataflow():
            lv = bb.emit(op.add(x, y))
            out = bb.emit_output(bb.emit_te(te_relu, op.matmul(lv, op.permute_dims(lv))))
        bb.emit_func_output(out)
    assert lv.struct_info.sizes == (n.expr, m.expr)
    assert out.struct_info.sizes == (n.expr, n.expr)
    main = relax.VirtualMachine(relax.build(bb.get()))["main"]
    for rows, columns in [(3, 5), (1, 4), (6, 1)]:
        a, b = torch.randn(rows, columns), torch.randn(columns)
        torch.testing.assert_close(main(a, b), torch.relu((a + b) @ (a + b).T))


def test_sizes_that_may_be_equal_leave_the_rank() -> None:
    bb = BlockBuilder()
    x, y = tensor("x", size("n"), dtype="float16"), tensor("y", size("k"), dtype="float16")
    with bb.function("main", [x, y]):
        z = bb.emit(op.multiply(x, y))
        bb.emit_func_output(z)
    assert z.struct_info == TensorStructInfo(None, "float16", ndim=1)
    a, b = torch.randn(3).half(), torch.randn(3).half()
    torch.testing.assert_close(relax.VirtualMachine(relax.build(bb.get()))["main"](a, b), a * b)


def test_blocks_names_and_bindings() -> None:
    x = tensor("x", 2)
    bb = BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            a = bb.emit(op.exp(x))
            b = bb.emit_output(a)
        c = bb.emit(op.exp(b), "named")
        with bb.dataflow():
            d = bb.emit(op.exp(c))
            e = bb.emit_output(d)
        bb.emit_func_output(e)
    blocks = bb.get()["main"].body.blocks
    assert [type(each).__name__ for each in blocks] == ["DataflowBlock", "BindingBlock", "DataflowBlock"]
    assert [each.name_hint for each in (a, b, c, d, e)] == ["lv", "gv", "named", "lv1", "gv1"]
    assert bb.lookup_binding(b) is a
    assert bb.lookup_binding(x) is None


def test_calls_in_calls_are_bindings_of_their_own() -> None:
    x = tensor("x", 2)
    bb = BlockBuilder()
    with bb.function("main", [x]):
        y = bb.emit(op.exp(op.sin(x)))
        bb.emit_func_output(y)
    assert y.name_hint == "gv1"
    assert [str(each.value) for each in bb.get()["main"].body.bindings] == ["R.sin(x)", "R.exp(gv)"]


def test_a_dataflow_variable_as_result_is_the_output_that_it_became() -> None:
    x = tensor("x", 2)
    bb = BlockBuilder()
    with bb.function("main"):
        with bb.dataflow():
            lv = bb.emit(op.exp(x))
            gv = bb.emit_output(lv)
        bb.emit_func_output(lv, [x])
    assert bb.get()["main"].body.body is gv


def test_match_cast_binds_sizes_and_is_looked_at_when_it_runs() -> None:
    x = Var("x", TensorStructInfo(None, "float32", ndim=2))
    n = size("n")
    bb = BlockBuilder()
    with bb.function("main", [x]):
        y = bb.match_cast(x, TensorStructInfo((n, 3), "float32"))
        z = bb.emit(op.reshape(y, (n * 3,)))
        bb.emit_func_output(z)
    assert z.struct_info.sizes == (3 * n,)
    main = relax.VirtualMachine(relax.build(bb.get()))["main"]
    a = torch.randn(2, 3)
    assert torch.equal(main(a), a.reshape(-1))
    with pytest.raises(RelaxError, match="SM1305: dimension 1 of match_cast of gv is 4"):
        main(torch.randn(2, 4))


def test_functions_call_functions() -> None:
    x = tensor("x", 2)
    bb = BlockBuilder()
    with bb.function("twice", [x], private=True):
        var = bb.emit_func_output(bb.emit(op.add(x, x)))
    y = tensor("y", 2)
    with bb.function("main", [y]):
        bb.emit_func_output(bb.emit(relax.Call(var, [relax.Call(var, [y])])))
    mod = bb.get()
    assert mod["main"].ret_struct_info == TensorStructInfo((2,), "float32")
    assert torch.equal(relax.VirtualMachine(relax.build(mod))["main"](torch.ones(2)), torch.full((2,), 4.0))


# -- what is refused -----------------------------------------------------------------------------------------


def test_a_function_has_one_output() -> None:
    x = tensor("x", 2)
    bb = BlockBuilder()
    with pytest.raises(RelaxError, match=r"SM1301: emit_func_output was called[\s\S]*once"):  # noqa: SIM117
        with bb.function("main", [x]):
            bb.emit_func_output(x)
            bb.emit_func_output(x)
    with pytest.raises(RelaxError, match="SM1301: emit_func_output must be called in function 'main', once"):  # noqa: SIM117
        with bb.function("main", [x]):
            bb.emit(op.exp(x))
    assert BlockBuilder.current() is None


def test_parameters_are_given_once() -> None:
    x = tensor("x", 2)
    bb = BlockBuilder()
    with pytest.raises(RelaxError, match=r"SM1301: no parameters of function 'main'"), bb.function("main"):
        bb.emit_func_output(x)
    with (
        pytest.raises(RelaxError, match=r"SM1301: .*at its beginning and at its end"),
        bb.function("main", [x]),
    ):
        bb.emit_func_output(x, [x])


def test_a_variable_that_nothing_binds_is_named() -> None:
    x, y = tensor("x", 2), tensor("y", 2)
    bb = BlockBuilder()
    with pytest.raises(RelaxError, match=r"SM1302: variable y in function 'main'[\s\S]*params: \[y\]"):  # noqa: SIM117
        with bb.function("main", [x]):
            bb.emit_func_output(bb.emit(op.add(x, y)))


def test_a_dataflow_variable_stays_in_its_block() -> None:
    x = tensor("x", 2)
    bb = BlockBuilder()
    with (
        pytest.raises(RelaxError, match=r"SM1302: .*variable lv [\s\S]*emit_output"),
        bb.function("main", [x]),
    ):
        with bb.dataflow():
            lv = bb.emit(op.exp(x))
        bb.emit_func_output(lv)


def test_no_function_in_a_function() -> None:
    x = tensor("x", 2)
    bb = BlockBuilder()
    with pytest.raises(RelaxError, match="SM1301: function 'inner' inside of function 'main'"):  # noqa: SIM117
        with bb.function("main", [x]), bb.function("inner", [x]):
            pass


def test_a_te_function_gets_what_it_can_take_and_gives_tensors() -> None:
    x = Var("x", TensorStructInfo(None, "float32", ndim=1))
    bb = BlockBuilder()
    with bb.function("main", [x]):
        with pytest.raises(RelaxError, match=r"SM1307: emit_te: x is a tensor whose sizes are not known"):
            bb.emit_te(te_relu, x)
        with pytest.raises(RelaxError, match=r"SM1307: broken returned int"):
            bb.emit_te(broken, relax.const(torch.ones(2)))
        bb.emit_func_output(x)


def broken(a: te.Tensor) -> int:
    return 1


def test_topi_functions_are_te_functions() -> None:
    if not hasattr(topi, "add"):
        pytest.skip("topi is not there")
    x, y = tensor("x", 4, 1), tensor("y", 6)
    bb = BlockBuilder()
    with bb.function("main", [x, y]):
        bb.emit_func_output(bb.emit_te(topi.add, x, y))
    a, b = torch.randn(4, 1), torch.randn(6)
    torch.testing.assert_close(relax.VirtualMachine(relax.build(bb.get()))["main"](a, b), a + b)


def test_private_functions_make_way_for_public_ones() -> None:
    bb = BlockBuilder()
    x = Var("x", TensorStructInfo((3,), "float32"))
    with bb.function("main", [x], private=True):
        inner = bb.emit_func_output(bb.emit(op.exp(x)))
    with bb.function("main", [x]):
        bb.emit_func_output(bb.emit(relax.Call(inner, [x])))
    mod = bb.finalize()
    assert [str(var) for var in mod] == ["main1", "main"]
    given = torch.randn(3)
    torch.testing.assert_close(relax.VirtualMachine(relax.build(mod))["main"](given), given.exp())


def test_a_body_within_a_dataflow_block_is_bound_before_and_the_block_goes_on() -> None:
    inner = BlockBuilder()
    with inner.function("inner", []):
        inner.emit_func_output(inner.emit(op.exp(relax.const(2.0)), "a"))
    bb = BlockBuilder()
    with bb.function("main", []):
        with bb.dataflow():
            bb.emit(relax.const(1.0), "before")
            out = bb.emit_output(bb.emit(inner.get()["inner"].body, "b"))
        bb.emit_func_output(out)
    blocks = [type(block).__name__ for block in bb.get()["main"].body.blocks]
    assert blocks == ["DataflowBlock", "BindingBlock", "DataflowBlock"]


def test_numbers_of_a_call_are_arguments_of_a_te_function() -> None:
    m, x, row = te.var("m", "int64"), tensor("x", 10, 4), Var("row", relax.PrimStructInfo("int64"))
    bb = BlockBuilder()

    def part(a: te.Tensor, at: Any, offset: Any) -> te.Tensor:
        return te.compute((3,), lambda i: a[i + at, offset] * 2, name="part")

    with bb.function("main", [x, row, Var("y", relax.ShapeStructInfo([m]))]):
        bb.emit_func_output(bb.emit_te(part, x, row, m))
    mod = bb.get()
    assert "R.call_tir(cls.part, (x, row, R.prim_value(m))" in mod.script()
    run, given = relax.VirtualMachine(relax.build(mod))["main"], torch.randn(10, 4)
    for at, column in ((5, 2), (0, 3), (7, 0)):
        torch.testing.assert_close(run(given, at, (column,)), given[at : at + 3, column] * 2)
    with pytest.raises(Exception, match=r"SM1048[\s\S]*reaches 10"):
        run(given, 8, (0,))


def test_a_dataflow_variable_in_another_block_is_refused_where_it_runs() -> None:
    x, bb = tensor("x", 2), BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            lv = bb.emit(op.exp(x))
            bb.emit_output(lv)
        with bb.dataflow():
            out = bb.emit_output(op.add(lv, lv))
        bb.emit_func_output(out)
    with pytest.raises(RelaxError, match=r"SM1302: Malformed AST: variable lv"):
        relax.build(bb.get())
