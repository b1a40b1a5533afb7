"""Every operator of the table, by its name, is what it should be; what it does not take it refuses."""

import pytest
import torch
from torch.utils import _pytree as pytree

from smelt import relax
from smelt.relax.operators import OPERATORS
from smelt.relax.types import RelaxError, TensorStructInfo
from tests.relax.cases import CASES, Case

UNTESTED = {"shape_of", "nonzero", "unique"}
"""Results that no tensor of known size holds; they have tests of their own."""


def module_of(cases: list[Case]) -> tuple[relax.Function, list[torch.Tensor]]:
    """One function that gives the results of all cases."""
    builder = relax.BlockBuilder()
    params, tensors, results = [], [], []
    for number, case in enumerate(cases):
        own = [
            relax.Var(f"x{number}_{k}", TensorStructInfo(tuple(each.shape), each.dtype))
            for k, each in enumerate(case.tensors)
        ]
        params += own
        tensors += case.tensors
        results.append((case, own))
    with builder.function("main", params):
        found = [builder.emit(case.call(*own)) for case, own in results]
        builder.emit_func_output(found)
    return builder.get(), tensors


@pytest.mark.parametrize("group", CASES)
def test_every_operator_is_what_it_should_be(group: str) -> None:
    cases = CASES[group]
    mod, tensors = module_of(cases)
    results = relax.VirtualMachine(relax.build(mod))["main"](*tensors)
    infos = mod["main"].ret_struct_info.fields
    for case, result, info in zip(cases, results, infos, strict=True):
        wanted = pytree.tree_leaves(case.want(*case.tensors))
        for got, want in zip(pytree.tree_leaves(result), wanted, strict=True):
            assert got.dtype == want.dtype, case.name
            torch.testing.assert_close(got, want, msg=lambda text, case=case: f"{case.name}: {text}")
        known = pytree.tree_leaves(info, is_leaf=lambda each: isinstance(each, TensorStructInfo))
        leaves = list(known[0].fields) if isinstance(known[0], relax.TupleStructInfo) else known
        assert [each.sizes for each in leaves] == [tuple(each.shape) for each in wanted], case.name


def test_every_operator_has_a_case() -> None:
    tested = {case.name for cases in CASES.values() for case in cases}
    assert OPERATORS.keys() - tested - UNTESTED == set()


def test_sizes_that_depend_on_data() -> None:
    x = relax.Var("x", TensorStructInfo((2, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        found = builder.emit(relax.op.nonzero(x))
        builder.emit_func_output(found)
    value = torch.tensor([[0.0, 1, 2], [3, 0, 4]])
    result = relax.VirtualMachine(relax.build(builder.get()))["main"](value)
    assert torch.equal(result, value.nonzero().t())


def test_numbers_beside_a_tensor_are_constants_of_its_dtype() -> None:
    x = relax.Var("x", TensorStructInfo((2,), "float16"))
    call = 2 * x + 1
    assert str(call) == 'R.add(R.multiply(R.const(2.0, "float16"), x), R.const(1.0, "float16"))'
    assert call.struct_info == TensorStructInfo((2,), "float16")


def test_wrong_operands_are_refused_by_name_and_shape() -> None:
    x = relax.Var("x", TensorStructInfo((2, 3), "float32"))
    with pytest.raises(
        RelaxError, match=r"SM1303: relax.matmul refuses \(float32\[2, 3\], float32\[2, 3\]\)"
    ):
        relax.BlockBuilder().normalize(relax.op.matmul(x, x))


def test_another_cubic_than_pytorchs_is_refused() -> None:
    image = relax.Var("x", TensorStructInfo((1, 2, 6, 6), "float32"))
    for option in ({"cubic_alpha": -0.5}, {"cubic_exclude": 1}):
        with pytest.raises(RelaxError, match=f"SM1303: relax.image.resize2d[\\s\\S]*{next(iter(option))}"):
            relax.BlockBuilder().normalize(relax.op.image.resize2d(image, (9, 4), method="cubic", **option))


def test_wrong_arguments_are_refused_with_the_signature() -> None:
    x = relax.Var("x", TensorStructInfo((2, 3), "float32"))
    with pytest.raises(RelaxError, match=r"SM1304: relax.sum: .*axes[\s\S]*axis=None, keepdims=False"):
        relax.op.sum(x, axes=1)


def test_an_unknown_operator_names_a_near_one() -> None:
    with pytest.raises(
        RelaxError, match=r"SM1304: no operator relax.permute_dim[\s\S]*did you mean permute_dims"
    ):
        _ = relax.op.permute_dim
