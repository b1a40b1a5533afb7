"""`relax.If`: built, written, printed, legalized and run; each branch sees what was bound before."""

from typing import Any

import pytest
import torch

from smelt import relax
from smelt.relax import RelaxError
from smelt.relax.transform import LegalizeOps
from smelt.script import assert_structural_equal, from_source

TEXT = """
@I.ir_module
class Module:
    @R.function(private=True)
    def twice(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        return R.add(x, x)

    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), c: R.Tensor((), "bool")) -> R.Tensor(("n", 4), "float32"):
        n = T.int64()
        cls = Module
        w = R.multiply(x, R.const(2.0, "float32"))
        if c:
            y = cls.twice(w)
            z = R.add(y, x)
        else:
            z = R.reshape(x, R.shape([n, 4]))
        return R.negative(z)
"""


def meaning(x: torch.Tensor, c: bool) -> torch.Tensor:
    return -(4 * x + x if c else x)


def runs(mod: Any) -> None:
    main = relax.VirtualMachine(relax.build(mod))["main"]
    for rows, c in ((3, True), (5, False)):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(main(x, torch.tensor(c)), meaning(x, c))


def test_a_script_has_conditionals() -> None:
    mod = from_source(TEXT)
    assert_structural_equal(from_source(mod.script()), mod)
    runs(mod)
    legal = LegalizeOps()(mod)
    assert "R.negative" not in legal.script() and "if c:" in legal.script()
    runs(legal)


NESTED = """
@R.function
def main(x: R.Tensor((3,), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((3,), "float32"):
    d = R.logical_not(c)
    if c:
        if d:
            z = R.negative(x)
        else:
            z = R.exp(x)
    else:
        with R.dataflow():
            y = R.abs(x)
            z = R.add(y, x)
            R.output(z)
    return z
"""


def test_branches_that_end_in_a_conditional_or_a_dataflow_block_are_printed() -> None:
    function = from_source(NESTED)
    text = function.script()
    assert_structural_equal(from_source(text), function)
    assert text.count(" z: ") == 3, text


def test_a_builder_has_conditionals() -> None:
    info = relax.TensorStructInfo((3,), "float32")
    x, c, held = relax.Var("x", info), relax.Var("c", relax.TensorStructInfo((), "bool")), torch.randn(3)

    def branch(value: Any) -> Any:
        y = relax.Var("y", info)
        return relax.SeqExpr([relax.BindingBlock([relax.VarBinding(y, value)])], y)

    bb = relax.BlockBuilder()
    with bb.function("main", [x, c]):
        z = bb.emit(relax.If(c, branch(relax.op.add(x, relax.const(held))), x))
        assert z.struct_info == info
        bb.emit_func_output(z)
    main = relax.VirtualMachine(relax.build(bb.get()))["main"]
    given = torch.randn(3)
    torch.testing.assert_close(main(given, torch.tensor(True)), given + held)
    torch.testing.assert_close(main(given, torch.tensor(False)), given)


def test_a_variable_of_a_branch_is_not_seen_outside() -> None:
    x, c = relax.Var("x", relax.TensorStructInfo((3,), "float32")), relax.Var("c")
    y = relax.Var("y", x.struct_info)
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(y, relax.op.exp(x))])], y)
    bb = relax.BlockBuilder()
    with (
        pytest.raises(RelaxError, match="SM1302: variable y in function 'main'"),
        bb.function("main", [x, c]),
    ):
        bb.emit(relax.If(c, body, x))
        bb.emit_func_output(y)


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (["if c:", "    y = x", "else:", "    z = x"], "one branch ends with y, the other with z"),
        (["if c:", "    y = x"], "a branch that binds nothing"),
        (["if c:", "    return x", "else:", "    y = x"], "a return in a branch"),
        (["with R.dataflow():", "    if c:", "        y = x", "    R.output()"], "an if in a dataflow block"),
    ],
)
def test_conditionals_that_mean_nothing_are_refused(lines: list[str], what: str) -> None:
    head = '@R.function\ndef main(x: R.Tensor((3,), "float32"), c: R.Tensor((), "bool")):\n    '
    with pytest.raises(Exception, match=f"SM1309: {what}"):
        from_source(head + "\n    ".join([*lines, "return x"]))
