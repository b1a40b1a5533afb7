"""What is captured for MLIR: derived sizes, tied weights, control flow, options, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import smelt
from smelt.capture import from_torchscript
from smelt.errors import SmeltError
from smelt.mlir.capturing import capture
from smelt.mlir.parameters import held_tensors

pytest.importorskip("torch_mlir", reason="needs the extra [mlir]")
H = Dim("h")
DIALECTS: tuple[Any, ...] = ("linalg", "stablehlo", "tosa")


class Halves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 2).sum(1)


class Shorter(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[1:] * y


DERIVED: dict[str, tuple[nn.Module, Any, list[tuple[int, ...]], tuple[int, ...]]] = {
    "2*h": (Halves(), {"x": {0: 2 * H}}, [(8,), (14,)], (7,)),
    "h+1": (Shorter(), {"x": {0: H + 1}, "y": {0: H}}, [(5, 4), (9, 8)], (9, 9)),
}


@pytest.mark.parametrize("name", DERIVED)
def test_derived_sizes(name: str) -> None:
    model, shapes, sizes, wrong = DERIVED[name]
    program = torch.export.export(model, tuple(map(torch.randn, sizes[0])), dynamic_shapes=shapes)
    exported = smelt.export(program)
    for run in (smelt.compile(program), *(exported.to(dialect).run for dialect in (*DIALECTS, "torch"))):
        for each in sizes:
            args = tuple(map(torch.randn, each))
            torch.testing.assert_close(run(*args), model(*args))
        with pytest.raises(SmeltError, match="dimension 0 of input x") as caught:
            run(*map(torch.randn, wrong))
        assert caught.value.code == "SM0603"


def test_linalg_itself_checks_a_derived_size() -> None:
    exported = smelt.export(Halves(), (torch.randn(8),), dynamic_shapes={"x": {0: 2 * H}})
    with pytest.raises(RuntimeError, match="dimension 0 of x is not 2"):
        exported.compile()(torch.randn(7))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(500, 8), nn.Linear(8, 500, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("again", self.count)

    def forward(self, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.head(self.embedding(i)), self.again + 1


@pytest.mark.parametrize("weights", ["inline", "external"])
def test_tied_weights_are_written_once(weights: Any, tmp_path: Any) -> None:
    model, i = Tied().eval(), torch.tensor([[1, 2]])
    captured = smelt.export(model, (i,), weights=weights)
    for to in (*DIALECTS, "torch"):
        exported = captured.to(to)
        for got, expected in zip(exported.run(i), model(i), strict=True):
            torch.testing.assert_close(got, expected)
        exported.save(tmp_path / f"{to}.mlirbc")
        size = sum(file.stat().st_size for file in tmp_path.glob(f"{to}.*"))
        assert size < 1.5 * model.head.weight.nbytes
        held = ["embedding.weight", "count"] if weights == "external" else []
        assert list(held_tensors(exported.signature)) == held


def test_of_tensors_that_share_memory_partly_all_are_held() -> None:
    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = nn.Parameter(torch.arange(6.0).reshape(2, 3))
            self.register_buffer("part", self.whole.detach()[1:])
            self.register_buffer("turned", self.whole.detach().reshape(3, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.whole.sum() * self.part.sum() + self.turned[1].sum()

    model, x = Halved().eval(), torch.ones(2)
    torch.testing.assert_close(smelt.export(model, (x,)).run(x), model(x))


def step(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return h + x, (h * x).sum()


def test_scan_and_map() -> None:
    from torch._higher_order_ops.map import map as over
    from torch._higher_order_ops.scan import scan

    h, xs = torch.randn(3), torch.randn(5, 3)
    shapes = ({}, {0: Dim("n"), 1: Dim.STATIC})
    scanned = smelt.export(lambda h, xs: scan(step, h, xs), (h, xs), dynamic_shapes=shapes)
    mapped = smelt.export(
        lambda xs: over(lambda x: x.cos() * 2, xs), (xs,), dynamic_shapes=({0: Dim("n"), 1: Dim("m")},)
    )
    for to in DIALECTS:
        for rows, columns in ((5, 3), (8, 3), (4, 6)):
            xs = torch.randn(rows, columns)
            torch.testing.assert_close(mapped.to(to).run(xs), xs.cos() * 2)
            if columns == 3:
                for got, expected in zip(scanned.to(to).run(h, xs), scan(step, h, xs), strict=True):
                    torch.testing.assert_close(got, expected)


def test_an_integer_product_of_two_dtypes() -> None:
    x, y = torch.randint(256, (4, 9), dtype=torch.uint8), torch.randint(-128, 127, (9, 4), dtype=torch.int8)
    expected = x.int() @ y.int()
    exported = smelt.export(lambda x, y: torch._int_mm(x, y), (x, y))
    assert all(torch.equal(exported.to(to).run(x, y), expected) for to in DIALECTS)


class Loop(nn.Module):
    """A loop over a buffer that has constants of its own, and writes to what it has made."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.while_loop import while_loop

        def body(x: torch.Tensor) -> tuple[torch.Tensor]:
            y = x + self.step * torch.tensor([1.0, 3.0])
            y[0] = 4.0
            return (torch.cond(y.sum() > 5, lambda y: y * torch.tensor(0.5), lambda y: y.clone(), (y,)) + 1,)

        return while_loop(lambda x: x.sum() < 10, body, (x,))[0]


def test_constants_inside_of_control_flow() -> None:
    model, x = Loop().eval(), torch.zeros(2)
    exported = smelt.export(model, (x,))
    compiled = smelt.compile(torch.export.export(model, (x,)))
    for run in (compiled, *(exported.to(dialect).run for dialect in DIALECTS)):
        torch.testing.assert_close(run(x), model(x))


def test_a_large_constant_inside_of_control_flow_is_refused() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + torch.tensor(list(range(2000)))[3], torch.clone, (x,))

    with pytest.raises(SmeltError, match="2000 elements") as caught:
        smelt.export(branch, (torch.ones(2),))
    assert caught.value.code == "SM0602"


def test_a_mask_of_another_dynamic_size_is_checked() -> None:
    def put(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.index_put(x, (mask,), values)

    args = torch.rand(5, 4), torch.tensor([True, False, True, True, False]), torch.rand(3, 4)
    shapes = ({0: Dim.AUTO}, {0: Dim.AUTO}, {0: Dim.AUTO})
    exported = smelt.export(put, args, dynamic_shapes=shapes)
    torch.testing.assert_close(exported.run(*args), put(*args))
    with pytest.raises((IndexError, SmeltError)):
        exported.run(args[0], args[1][:4], args[2])


# -- options ---------------------------------------------------------------------------------------------


def test_decompositions_of_ones_own() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x + x

    exported = smelt.export(
        torch.tanh, (torch.ones(3),), decomposition_table={torch.ops.aten.tanh.default: twice}
    )
    assert torch.equal(exported.run(torch.ones(3)), torch.full((3,), 2.0))


def test_asserts_are_preferred_over_guards() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1) + y

    args = torch.randn(4, 6), torch.randn(24)
    shapes = {"x": {0: Dim("a"), 1: Dim("b")}, "y": {0: Dim.DYNAMIC}}
    asserts = {}
    for deferred in (False, True):
        exported = smelt.export(
            Model(), args, dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=deferred
        )
        asserts[deferred] = exported.program.graph_module.code.count("_assert_scalar")
    assert asserts[True] > asserts[False]
    torch.testing.assert_close(exported.run(*args), Model()(*args))
    with pytest.raises((RuntimeError, SmeltError)):
        exported.run(torch.randn(4, 6), torch.randn(25))


@torch.library.custom_op("smelt_external::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float, times: int = 2, mode: str = "plain") -> torch.Tensor:
    return x * factor * times


@scale.register_fake
def _(x: torch.Tensor, factor: float, times: int = 2, mode: str = "plain") -> torch.Tensor:
    return torch.empty_like(x)


def test_external_calls() -> None:
    def calls(x: torch.Tensor) -> torch.Tensor:
        once = torch.ops.smelt_external.scale(x.sin(), 2.5)
        return once + torch.ops.smelt_external.scale(once[:2], 3.0, mode="other").sum()

    args, shapes = (torch.rand(4),), ({0: Dim.AUTO},)
    plain = smelt.export(calls, args, to="torch", dynamic_shapes=shapes)
    external = smelt.export(calls, args, dynamic_shapes=shapes, external_calls=["smelt_external::scale"])
    for each in (plain, external.to("torch")):
        assert str(each).count('"torch.smelt_external.scale"') == 2
    for to in DIALECTS:
        with pytest.raises(SmeltError, match="smelt_external"):
            plain.to(to)
        text = str(external.to(to))
        assert text.count("call @smelt_external.scale") == 2
        assert text.count("func.func private @smelt_external.scale") == 2  # (?) and (2) elements
        assert 'mode = "other"' in text
        with pytest.raises(SmeltError) as caught:
            external.to(to).run(*args)
        assert caught.value.code == "SM0750"


@torch.library.custom_op("smelt_external::parts", mutates_args=())
def parts(x: torch.Tensor, add: int) -> tuple[torch.Tensor, torch.Tensor]:
    return x + add, x.sum(-1)


@parts.register_fake
def _(x: torch.Tensor, add: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[:-1])


class Calls(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        once = torch.ops.smelt_external.scale(x.t(), 2.5)
        more, total = torch.ops.smelt_external.parts(once, 3)
        return torch.ops.smelt_external.scale(more[:2], 3.0) + total.sum(), x * 2


def _scaled(x: torch.Tensor, factor: float, times: int) -> torch.Tensor:
    return x * factor * times


OWN: dict[Any, Any] = {
    "smelt_external::scale": _scaled,
    torch.ops.smelt_external.parts: lambda x, add: (x + add, x.sum(-1)),
}


@pytest.mark.parametrize(("to", "shapes"), [("linalg", ({1: Dim("n")},)), ("linalg", None), ("tosa", None)])
def test_external_calls_of_python_functions(to: Any, shapes: Any) -> None:
    x = torch.randint(-9, 9, (4, 5)).float()
    exported = smelt.export(Calls(), (x,), to=to, dynamic_shapes=shapes, external_calls=OWN)
    for _ in range(2):
        torch.testing.assert_close(exported.run(x), Calls()(x))
    bytes_ = torch.tensor([[200, 3]], dtype=torch.uint8)

    def halved(x: torch.Tensor, *numbers: float) -> torch.Tensor:
        return (x.float() / 2).to(torch.uint8)

    scaled = {"smelt_external::scale": halved}
    once = smelt.export(
        lambda x: torch.ops.smelt_external.scale(x, 0.5) + 1, (bytes_,), to=to, external_calls=scaled
    )
    assert once.run(bytes_).tolist() == [[101, 2]]


def test_what_an_external_function_raises() -> None:
    def refuses(*args: Any) -> torch.Tensor:
        raise KeyError("not today")

    x = torch.randn(4, 5)
    raising = smelt.export(Calls(), (x,), external_calls={**OWN, "smelt_external::scale": refuses})
    wrong = {**OWN, "smelt_external::scale": lambda x, *numbers: x[:1]}
    shorter = smelt.export(Calls(), (x,), external_calls=wrong)
    for to in ("linalg", "tosa"):
        with pytest.raises(KeyError, match="not today"):
            raising.to(to).run(x)
        with pytest.raises(SmeltError, match="has the shape"):
            shorter.to(to).run(x)


def test_external_functions_of_dynamic_sizes() -> None:
    x, shapes = torch.randn(4, 5), ({0: Dim("n")},)
    wrong = {"smelt_external::scale": lambda x, *numbers: x[:1]}

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.smelt_external.scale(x, 2.0) + x

    with pytest.raises(RuntimeError, match=r"a result of smelt_external\.scale"):
        smelt.export(scaled, (x,), dynamic_shapes=shapes, external_calls=wrong).run(x)
    for to in ("tosa", "stablehlo"):
        with pytest.raises(SmeltError) as caught:
            smelt.export(scaled, (x,), to=to, dynamic_shapes=shapes, external_calls=wrong).run(x)  # type: ignore[arg-type]
        assert caught.value.code == "SM0750"


# -- loops over numbers ----------------------------------------------------------------------------------


def test_loops_over_numbers() -> None:
    """Python's own integers, and constants, whose first condition the Torch dialect's pipelines fold."""
    loop = torch._higher_order_ops.while_loop

    def counted(x: torch.Tensor) -> tuple[Any, ...]:
        fixed = loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (0, x))
        rows = loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 2, x + i), (1, x))
        never = loop(lambda i, x: i > 5, lambda i, x: (i + 1, x * 2), (0, x))
        zero = torch.tensor(0)
        return *fixed, *rows, *never, *loop(lambda i, x: i < 4, lambda i, x: (i + 1, x + i), (zero, x))

    x = torch.ones(4)
    exported, expected = smelt.export(counted, (x,)), [str(each) for each in counted(x)]
    for to in (*DIALECTS, "torch"):
        assert [str(each) for each in exported.to(to).run(x)] == expected


def test_an_external_operator_that_does_not_exist() -> None:
    with pytest.raises(SmeltError, match="there is no operator") as caught:
        smelt.export(nn.Tanh(), (torch.ones(2),), external_calls=["smelt_external::nothing"])
    assert caught.value.code == "SM0722"


# -- refusals --------------------------------------------------------------------------------------------


def test_what_torch_raises_inside_has_a_code_and_a_line() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.ones(7, 7)

    with pytest.raises(SmeltError, match="reduction dim") as caught:
        smelt.export(Model(), (torch.ones(4, 4),))
    assert caught.value.code == "SM0723" and "test_capturing.py" in str(caught.value.where)


class Remembers(nn.Module):
    """``total`` is read before it is set, ``last`` never is, ``inner`` is read only after that; ``mean`` is a
    buffer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = self.last = self.inner = torch.zeros(2)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inner = x.relu()
        if x.size(0) > 1:
            self.total = self.total + self.inner
        self.last = x
        return self.total + self.inner + self.mean


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_torchscript_that_keeps_values_is_refused() -> None:
    """A package of silero-vad forgot its state, where torch did not crash before."""
    scripted = torch.jit.script(Remembers().eval())
    with pytest.raises(SmeltError, match=r"in attributes: total\n") as caught:
        smelt.export(scripted, (torch.ones(2),))
    assert caught.value.code == "SM0724"
    with pytest.raises(SmeltError, match="SM0724"):
        smelt.export(nn.Sequential(from_torchscript(scripted)), (torch.ones(2),))


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_torchscripts_data_is_captured() -> None:
    """torch.export took ``x.data`` for a constant, a fake one, and crashed with it."""

    def cut(x: torch.Tensor) -> torch.Tensor:
        return x.data * 2 + x

    x = torch.randn(3)
    assert torch.equal(capture(torch.jit.script(cut), (x,)).exported.module()(x), x * 3)


def test_quantized_tensors_are_refused() -> None:
    scale, zero = torch.tensor([0.1]), torch.tensor([0])

    def quantized(x: torch.Tensor) -> torch.Tensor:
        return torch._make_per_tensor_quantized_tensor(x, 0.1, 3).dequantize() * scale + zero

    with pytest.raises(SmeltError) as caught:
        smelt.export(quantized, (torch.ones(4, dtype=torch.int8),))
    assert caught.value.code == "SM0723"


def test_errors_of_ones_own_program_stay_what_they_are() -> None:
    def mine(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        smelt.export(mine, (torch.ones(3),))


def test_a_size_that_is_fixed_after_all_hints_at_auto() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(3)

    with pytest.raises(SmeltError) as caught:
        smelt.export(Fixed(), (torch.ones(3),), dynamic_shapes={"x": {0: Dim("n")}})
    assert "Dim.AUTO" in str(caught.value.remedy)
    with pytest.raises(SmeltError) as caught:
        smelt.export(nn.Tanh(), (torch.ones(1),), dynamic_shapes=({0: Dim("n")},))
    assert "size 2 or more" in str(caught.value.remedy)


def test_a_call_with_one_row_says_how_to_get_that() -> None:
    exported = smelt.export(nn.Tanh(), (torch.ones(4),), dynamic_shapes=({0: Dim.AUTO},))
    with pytest.raises(SmeltError, match="exported for 2 and more") as caught:
        exported.run(torch.ones(1))
    assert 'Dim("n")' in str(caught.value.remedy)
    named = smelt.export(nn.Tanh(), (torch.ones(4, 2),), dynamic_shapes=({0: Dim("n")},))
    for rows in (0, 1, 5):
        assert named.run(torch.zeros(rows, 2)).shape == (rows, 2)


def test_the_program_is_printed_once(capfd: Any) -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(SmeltError):
        smelt.export(branch, (torch.ones(3),))
    assert capfd.readouterr().err.count("def forward") <= 1
