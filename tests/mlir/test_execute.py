"""Modules of Linalg on tensors run in this process: tensors, numbers, assertions."""

from __future__ import annotations

import pytest
import torch

from smelt.errors import SmeltError
from smelt.mlir.bindings import new_context
from smelt.mlir.diagnostics import PipelineError
from smelt.mlir.execute import Executable

ir = pytest.importorskip("torch_mlir.ir", reason="needs the extra [mlir]")

GATHER = """
func.func @main(%place: tensor<i64>, %x: tensor<4xf32>) -> tensor<f32> {
  %four = arith.constant 4 : i64
  %zero = arith.constant 0 : index
  %value = tensor.extract %place[] : tensor<i64>
  %inside = arith.cmpi ult, %value, %four : i64
  cf.assert %inside, "IndexError: index out of range"
  %index = arith.index_cast %value : i64 to index
  %safe = arith.select %inside, %index, %zero : index
  %element = tensor.extract %x[%safe] : tensor<4xf32>
  %result = tensor.from_elements %element : tensor<f32>
  return %result : tensor<f32>
}
"""


def compiled(text: str, name: str = "main") -> Executable:
    return Executable(ir.Module.parse(text, context=new_context()), name)


def identity(element: str) -> str:
    kind = f"tensor<?x2x{element}>"
    return f"func.func @main(%x: {kind}) -> {kind} {{ return %x : {kind} }}"


@pytest.mark.parametrize(
    "element, dtype",
    [
        ("i1", torch.bool),
        ("i8", torch.int8),
        ("i16", torch.int16),
        ("i32", torch.int32),
        ("i64", torch.int64),
        ("f16", torch.float16),
        ("bf16", torch.bfloat16),
        ("f32", torch.float32),
        ("f64", torch.float64),
        ("complex<f32>", torch.complex64),
        ("complex<f64>", torch.complex128),
    ],
)
def test_every_dtype_comes_back(element, dtype):
    run = compiled(identity(element))
    for size in (3, 1, 0):
        x = torch.randn(size, 2).mul(3).to(dtype)
        (result,) = run(x)
        assert result.dtype == dtype
        assert torch.equal(result, x)
        assert result.data_ptr() != x.data_ptr() or size == 0


def test_unsigned_integers_go_where_signless_ones_are_taken():
    (result,) = compiled(identity("i8"))(torch.full((1, 2), 255, dtype=torch.uint8))
    assert torch.equal(result.view(torch.uint8), torch.full((1, 2), 255, dtype=torch.uint8))


def test_strided_arguments():
    x = torch.randn(2, 5).t()
    assert torch.equal(compiled(identity("f32"))(x)[0], x)


def test_arguments_are_not_written_to():
    run = compiled("""
    func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %y = linalg.add ins(%x, %x : tensor<3xf32>, tensor<3xf32>) outs(%x : tensor<3xf32>) -> tensor<3xf32>
      return %y : tensor<3xf32>
    }
    """)
    x = torch.ones(3)
    assert torch.equal(run(x)[0], torch.full((3,), 2.0))
    assert torch.equal(x, torch.ones(3))


def test_numbers_and_tensors_mixed():
    run = compiled("""
    func.func @main(%n: i64, %f: f64, %b: i1, %x: tensor<f32>) -> (i1, tensor<f32>, i64, f64) {
      %m = arith.addi %n, %n : i64
      return %b, %x, %m, %f : i1, tensor<f32>, i64, f64
    }
    """)
    flag, x, number, real = run(-4, 2.5, True, torch.tensor(3.0))
    assert (flag, number, real) == (True, -8, 2.5)
    assert torch.equal(x, torch.tensor(3.0))


def test_a_single_number():
    assert compiled("func.func @main(%n: i64) -> i64 { return %n : i64 }")(7) == [7]


def test_no_results():
    assert compiled("func.func @main(%n: i64) { return }")(7) == []


def test_one_tensor_returned_twice():
    run = compiled("""
    func.func @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
      %y = linalg.exp ins(%x : tensor<2xf32>) outs(%x : tensor<2xf32>) -> tensor<2xf32>
      return %y, %y : tensor<2xf32>, tensor<2xf32>
    }
    """)
    for _ in range(3):
        first, second = run(torch.zeros(2))
        assert torch.equal(first, torch.ones(2))
        assert torch.equal(second, torch.ones(2))


def test_constants_are_returned_as_copies():
    run = compiled("""
    func.func @main() -> tensor<2xf32> {
      %c = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>
      return %c : tensor<2xf32>
    }
    """)
    run()[0].zero_()
    assert torch.equal(run()[0], torch.tensor([1.0, 2.0]))


def test_an_assertion_raises_and_the_process_goes_on():
    run = compiled(GATHER)
    x = torch.arange(4.0)
    assert run(torch.tensor(2), x) == [torch.tensor(2.0)]
    for place in (4, -1):
        with pytest.raises(IndexError, match=r"^index out of range$"):
            run(torch.tensor(place), x)
    assert run(torch.tensor(3), x) == [torch.tensor(3.0)]


def test_an_assertion_without_a_kind_is_a_runtime_error():
    with pytest.raises(RuntimeError, match="index out of range"):
        compiled(GATHER.replace("IndexError: ", ""))(torch.tensor(9), torch.arange(4.0))


@pytest.mark.parametrize(
    "arguments, said",
    [
        ((torch.ones(4),), "1 arguments"),
        ((torch.tensor(1), torch.ones(5)), r"argument 1 has the shape \[5\]"),
        ((torch.tensor(1), torch.ones(4, 1)), r"the shape \[4, 1\]"),
        ((torch.tensor(1), torch.ones(4).double()), "argument 1 is torch.float64"),
        ((1, torch.ones(4)), "argument 0 is int"),
    ],
)
def test_wrong_arguments(arguments, said):
    with pytest.raises(SmeltError, match=said) as caught:
        compiled(GATHER)(*arguments)
    assert caught.value.code == "SM0719"


def test_no_such_function():
    with pytest.raises(SmeltError) as caught:
        compiled(GATHER, "other")
    assert caught.value.code == "SM0718"


def test_what_cannot_be_lowered_is_named():
    with pytest.raises(PipelineError) as caught:
        compiled("""
        func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
          %0 = stablehlo.tanh %x : tensor<2xf32>
          return %0 : tensor<2xf32>
        }
        """)
    assert caught.value.operation == "stablehlo.tanh"


def test_the_module_stays_as_it_is():
    module = ir.Module.parse(GATHER, context=new_context())
    before = str(module)
    Executable(module)
    assert str(module) == before


def test_what_takes_long_is_optimized() -> None:
    run = compiled(GATHER)
    given = torch.tensor(2), torch.arange(4.0)
    before, run.patience = run.engine, -1.0
    assert run(*given)[0] == 2
    assert run.engine is not before
    with pytest.raises(IndexError):
        run(torch.tensor(4), given[1])
