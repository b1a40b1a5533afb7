"""Functions as text and back: what is printed is read as the same function; what means nothing is refused."""

import ast
import textwrap

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from smelt import relax, script
from smelt.errors import SmeltError
from smelt.relax import RelaxError, TensorStructInfo
from smelt.relax.frontend.torch import from_exported_program
from smelt.relax.parse import function_of
from smelt.relax.text import Printer
from smelt.relax.transform import LegalizeOps
from smelt.relax.values import CALL_TIR
from smelt.script import ir as I
from smelt.script import relax as R
from tests.relax.cases import CASES
from tests.relax.test_builder import matmul_relu, tensor
from tests.relax.test_importers import MODELS
from tests.relax.test_operators import module_of


def read(text: str, **options: object) -> relax.Function:
    return function_of(ast.parse(textwrap.dedent(text)).body[0], **options)  # type: ignore[arg-type]


def round_trip(function: relax.Function) -> relax.Function:
    printer = Printer()
    text = "\n".join(printer.function(function, "main"))
    return read(text, constants=[each.data for each in printer.constants])


@pytest.mark.parametrize("group", CASES)
def test_every_operator_is_read_as_it_was_printed(group: str) -> None:
    function = module_of(CASES[group])[0]["main"]
    assert round_trip(function) == function


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_imported_programs_are_read_as_they_were_printed(name: str) -> None:
    make, shape = MODELS[name]
    model, x = make().eval(), torch.randn(shape)
    function = from_exported_program(torch.export.export(model, (x,)))["main"]
    again = round_trip(function)
    assert again == function
    results = relax.VirtualMachine(relax.build(again))["main"](x)
    for got, want in zip(pytree.tree_leaves(results), pytree.tree_leaves(model(x)), strict=True):
        torch.testing.assert_close(got, want)


def test_what_a_person_writes_is_read() -> None:
    function = read(
        '''
        @R.function
        def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, "m"), "float32")):
            n = T.int64()
            m = T.int64()
            """A product."""
            with R.dataflow():
                lv0 = R.matmul(x, w)
                gv0: R.Tensor((n, m), "float32") = R.nn.relu(R.add(lv0, R.const(1, "float32")))
                R.output(gv0)
            gv1 = R.reshape(gv0 * gv0, R.shape([n * m]))
            return gv1
        '''
    )
    assert [type(each).__name__ for each in function.body.blocks] == ["DataflowBlock", "BindingBlock"]
    assert str(function.ret_struct_info) == 'R.Tensor((m*n,), dtype="float32")'
    x, w = torch.randn(2, 4), torch.randn(4, 3)
    got = relax.VirtualMachine(relax.build(function))["main"](x, w)
    torch.testing.assert_close(got, torch.relu(x @ w + 1).square().reshape(-1))


def test_modules_are_read_as_they_were_printed() -> None:
    mod = matmul_relu(True)
    text = mod.script()
    assert "@R.function" in text
    assert text.index("def te_matmul") < text.index("def te_relu") < text.index("def main")
    again = script.from_source(text)
    assert script.structural_equal(again, mod)
    a, b = torch.randn(16, 24), torch.randn(24, 8)
    torch.testing.assert_close(relax.VirtualMachine(relax.build(again))["main"](a, b), torch.relu(a @ b))


def test_constants_of_a_text_are_given_beside_it() -> None:
    x = tensor("x", 2)
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        bb.emit_func_output(bb.emit(relax.op.add(x, relax.const([1.0, 2.0]))))
    mod = bb.get()
    values = [torch.tensor([1.0, 2.0])]
    assert script.structural_equal(relax.from_source(mod.script(), values), mod)
    assert not script.structural_equal(relax.from_source(mod.script(), [torch.zeros(2)]), mod)
    with pytest.raises(SmeltError, match=r"SM1309: constant 0 is not in the text[\s\S]*relax.from_source"):
        script.from_source(mod.script())


@I.ir_module
class Written:
    """Read from its source, never run."""

    @R.function
    def main(x: R.Tensor(("n", 4), "float32")):  # noqa: N805
        cls = Written
        y = cls.twice(x)
        return R.nn.relu(y)

    @R.function(private=True)
    def twice(x: R.Tensor(("n", 4), "float32")):  # noqa: N805
        return R.add(x, x)


def test_a_class_under_ir_module_is_a_module() -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(relax.VirtualMachine(relax.build(Written))["main"](x), torch.relu(x + x))


def test_tuples_private_functions_and_attributes() -> None:
    function = read(
        """
        @R.function(private=True)
        def f(x: R.Tuple(R.Tensor((2,), "float32"), R.Tensor((3,), "int32"))) -> R.Object:
            R.func_attr({"kind": "test", "levels": [1, 2]})
            y = x[1]
            z = (y, R.astype(x[0], "int32"))
            return z
        """
    )
    assert function.private
    assert function.attrs == {"kind": "test", "levels": [1, 2]}
    assert function.body.body.struct_info.fields[0] == TensorStructInfo((3,), "int32")
    assert round_trip(function) == function


def test_calls_of_the_modules_functions() -> None:
    function = read(
        """
        @R.function
        def main(x: R.Tensor((2,), "float32")):
            cls = Module
            gv = R.call_tir(cls.f, (x,), out_sinfo=R.Tensor((2,), dtype="float32"))
            gv1 = R.call_tir(Module.g, gv, R.Tensor((3,), dtype="float32"))
            return gv1
        """
    )
    assert [str(each.value) for each in function.body.bindings] == [
        'R.call_tir(cls.f, (x,), out_sinfo=R.Tensor((2,), dtype="float32"))',
        'R.call_tir(cls.g, (gv,), out_sinfo=R.Tensor((3,), dtype="float32"))',
    ]


REFUSED = {
    "return R.add(x, z)": "z is not bound here",
    "return R.ad(x, x)": "no operator relax.ad",
    "return R.matmul(x, x, axis=1)": "relax.matmul: got an unexpected keyword argument 'axis'",
    "y: R.Tensor((3,), 'float32') = R.add(x, x)\n    return y": "y is R.Tensor",
    "y = z = R.add(x, x)\n    return y": "two variables for one value",
    "R.add(x, x)\n    return x": "a expr statement",
    "import os\n    return x": "a import statement",
    "y = [each for each in x]\n    return y": "a listcomp in a relax function",
    "return metadata['relax.expr.Constant'][0]": "constant 0 is not in the text",
    "y = R.matmul(x, R.const([1.0]))\n    return y": "relax.matmul refuses",
    "y = R.call_tir(cls.f, (x,))\n    return y": "call_tir without out_sinfo",
    "pass": "function main returns nothing",
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_means_nothing_is_refused_with_its_line(body: str) -> None:
    text = f'def main(x: R.Tensor((2, 2), "float32")):\n    {body}'
    with pytest.raises(RelaxError, match=r"SM1309: [\s\S]*at: line") as caught:
        read(text)
    assert REFUSED[body] in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "what"),
    [
        ("R.Tensor((2,), 'float32', ndim=3)", "ndim=3 with a shape of 1 dimensions"),
        ("R.Tensor(dtype='float32', foo=2)", "R.Tensor: got an unexpected keyword argument 'foo'"),
        ("R.Tensor(dtype='float32', ndim=-2)", "ndim=-2"),
        ("int", "int is no annotation"),
        ("R.Tensor(16)", "a shape is a tuple or a list"),
    ],
)
def test_annotations_that_mean_nothing_are_refused(annotation: str, what: str) -> None:
    with pytest.raises(RelaxError, match="SM1309") as caught:
        read(f"def main(x: {annotation}):\n    return x")
    assert what in str(caught.value)


def test_values_of_python_and_names_of_tvms_modules_are_read() -> None:
    text = """
    def main(x: R.Tensor((3,), "float32"), at: R.Prim("int64")):
        n, most = T.int64(), I.meta_var(T.FloatImm("float32", 0.5))
        lv = relax.op.multiply(x, relax.const(np.ones((3,)), "float32"))
        lv1 = R.clip(lv, R.prim_value(T.float64("-inf")), R.prim_value(most))
        gv = R.take(lv1, at, axis=0)
        return gv
    """
    function = read(text, values={"np": np})
    assert function.ret_struct_info == TensorStructInfo((), "float32")
    mod = LegalizeOps()(script.IRModule({"main": function}))
    assert all(binding.value.op is CALL_TIR for binding in mod["main"].body.bindings)
    main = relax.VirtualMachine(relax.build(mod))["main"]
    assert [float(main(torch.tensor([-3.0, 0.25, 4.0]), at)) for at in range(3)] == [-3.0, 0.25, 0.5]


def test_names_of_python_stand_for_annotations() -> None:
    found = R.Tensor((2,), "float32")

    @R.function
    def main(x: R.Object, y: found):
        z = R.match_cast(x, found)
        return R.add(y, z)

    assert [str(each) for each in (main.params[1].struct_info, main.ret_struct_info)] == [str(found)] * 2
    text = "def main(x: R.Object):\n    y = R.match_cast(x, kind)\n    return y"
    for kind in (R.Shape, R.Any, R.Callable, R.Tensor, R.Tuple):
        function = read(text, values={"kind": kind})
        assert str(function.ret_struct_info) == str(kind()) and "R.match_cast(x" in str(function)
    with pytest.raises(RelaxError, match="kind is no annotation"):
        read(text, values={"kind": print})


def test_a_parameter_without_annotation_is_refused() -> None:
    with pytest.raises(RelaxError, match="SM1309: parameter x has no annotation"):
        read("def main(x):\n    return x")
