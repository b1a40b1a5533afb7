"""TorchScript as Python: each kind of node gives what TorchScript gives, compiled too."""

from __future__ import annotations

import copy
import io
import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.capture import from_torchscript
from smelt.contract.where import parse
from smelt.errors import SmeltError

from . import programs

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")

X = torch.linspace(-1, 2, 12).reshape(3, 4)
FUNCTIONS: dict[str, list[tuple[Any, ...]]] = {
    "lists": [(X, 4), (X, 1)],
    "dicts": [(X,)],
    "strings": [(X, "name")],
    "numbers": [(-7, 2, 2.5), (7, -2, 0.5)],
    "named": [(X,)],
    "use_named": [(programs.Pair(X, 3),)],
    "optional": [(X,), (X, X), (X, None, 3.0)],
    "factory": [(X,), (X.double(),)],
    "dtypes": [(X,), (X.half(),), (X.int(),)],
    "nograd": [(X,)],
    "forked": [(X,)],
    "inplace": [(X,)],
    "early": [(X, 7), (X, 2)],
    "collatz": [(torch.tensor([3.0, 4.0]),), (torch.tensor([1.0, 0.0]),)],
    "newton": [(X.abs() + 0.5,)],
    "shadow": [(3, 2.0, X)],
    "counted": [(X,)],
    "isinst": [([1, 2],), (3,)],
    "tolist": [(X[0],)],
    "interp": [(X,), (torch.cat([X, X]),)],
    "raising": [(X,)],
    "aliased": [(X,)],
    "comprehension": [(X[0],)],
    "devices": [(X,)],
}


def script(program: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(program)


def trace(program: Any, *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(program, args)


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        same(list(found.values()), list(wanted.values()))
    elif isinstance(wanted, (list, tuple)):
        assert getattr(found, "_fields", type(found)) == getattr(wanted, "_fields", type(wanted))
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            same(one, other)
    else:
        assert type(found) is type(wanted)
        assert found == wanted


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_what_they_were(name):
    scripted = script(getattr(programs, name))
    function, compiled = from_torchscript(scripted), smelt.compile(scripted)
    for args in FUNCTIONS[name]:
        for call in (function, compiled, compiled):
            same(call(*copy.deepcopy(args)), scripted(*copy.deepcopy(args)))


def test_a_list_that_python_gives_is_copied():
    function, given = from_torchscript(script(programs.add_to)), [1, 2]
    assert function(given, 3) == [1, 2, 3, 4]
    assert given == [1, 2]


def test_what_eager_refuses_is_refused_with_the_same_error():
    scripted = script(programs.raising)
    with pytest.raises(torch.jit.Error, match=r"builtins\.ValueError: too long"):
        scripted(torch.ones(4))
    for function in (from_torchscript(scripted), smelt.compile(scripted)):
        with pytest.raises(torch.jit.Error, match=r"builtins\.ValueError: too long"):
            function(torch.ones(4))
        same(function(X), X)


def test_what_torchscript_alone_can_run_it_runs_in_the_middle():
    scripted = script(programs.counted)
    smelt.reset()
    compiled = smelt.compile(scripted)
    assert compiled(X) == scripted(X) == 8
    (report,) = [each for each in smelt.reports() if each.graph_name == "torchscript counted"]
    assert [each.op for each in report.fallbacks] == ["prim::CreateObject"]
    assert report.fallbacks[0].where.startswith("programs.py:")


@pytest.mark.parametrize("program", [programs.Holder, programs.Making])
def test_objects_of_script_classes(program):
    torch.manual_seed(0)
    scripted = script(program())
    twin, compiled = copy.deepcopy(scripted), smelt.compile(scripted)
    for _ in range(3):
        same(compiled(X[:, :3]), twin(X[:, :3]))


def test_what_cannot_be_taken_apart_is_refused():
    with pytest.raises(SmeltError, match="SM0111") as refused:
        from_torchscript(script(programs.Entangled()))
    assert "programs.py" in str(refused.value)


def test_other_things_are_no_torchscript():
    with pytest.raises(SmeltError, match="SM0110: a ReLU is no TorchScript"):
        from_torchscript(nn.ReLU())


def test_pieces_between_reads_of_data_are_compiled_whole():
    scripted = script(programs.Branching().eval())
    smelt.reset()
    compiled = smelt.compile(scripted)
    assert compiled.pieces == {"forward": 3}
    with torch.no_grad():
        for x in (torch.full((2, 3), 3.0), torch.full((2, 3), -3.0)):
            same(compiled(x), scripted(x))
    kinds = [each.kind for each in smelt.reports()]
    assert kinds[0] == "eager"  # where data decides
    assert kinds[1:] == ["inference"] * 3
    assert not any(each.fallbacks for each in smelt.reports()[1:])


@pytest.mark.parametrize("sign", [1, -1])
def test_control_flow_as_operators_is_one_graph(sign):
    scripted = script(programs.Deciding())
    smelt.reset()
    compiled = smelt.compile(scripted, fullgraph=True)
    same(compiled(X * sign), scripted(X * sign))
    (report,) = smelt.reports()
    assert report.kind == "inference"
    program = torch.export.export(from_torchscript(scripted, structured=True), (X,))
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert {"cond", "while_loop"} <= set(names)


@pytest.mark.parametrize("name", ["counts_its_turns", "stops", "collatz"])
def test_control_flow_that_is_no_function_of_tensors(name):
    with pytest.raises(SmeltError, match="SM0112") as refused:
        smelt.compile(script(getattr(programs, name)), fullgraph=True)
    assert "programs.py" in str(refused.value)


def test_training():
    torch.manual_seed(0)
    module = programs.Lstm()
    module.drop.p = 0.0
    scripted = script(module)
    x = torch.randn(6, 3, 4)
    compiled = smelt.compile(scripted)
    assert compiled.training
    twin = copy.deepcopy(module)
    for model in (compiled, twin):
        result, hidden = model(x)
        (result.square().sum() + hidden.sum()).backward()
    wanted = {name: each.grad for name, each in twin.named_parameters()}
    found = {name.removeprefix("_orig_mod."): each.grad for name, each in compiled.named_parameters()}
    assert wanted.keys() == found.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-5)
    assert all(each.grad is not None for each in module.parameters())  # they are the same tensors
    same(module.norm.running_mean, twin.norm.running_mean)
    compiled.eval()
    twin.eval()
    with torch.no_grad():
        same(compiled(x), twin(x))


def test_gradients_go_through_pieces():
    x = torch.full((2, 3), 3.0)
    scripted = script(programs.Branching())
    compiled, found = smelt.compile(scripted), []
    for model in (scripted, compiled):
        scripted.layer.weight.grad = None
        model(x).sum().backward()
        found.append(scripted.layer.weight.grad)
    same(found[1], found[0])


def test_state_is_the_compiled_modules_own():
    scripted = script(programs.Stateful())
    compiled = smelt.compile(scripted)
    twin = copy.deepcopy(scripted)
    for _ in range(4):
        same(compiled(X[:, :3]), twin(X[:, :3]))
    assert (
        (compiled.calls, list(compiled.history)) == (twin.calls, list(twin.history)) == (4, [0, 1, 2, 3, 4])
    )
    same(compiled.last, twin.last)
    assert scripted.calls == 0
    same(scripted.seen, twin.seen)  # buffers are shared, as parameters are
    compiled.reset(7)
    twin.reset(7)
    same(compiled(X[:, :3]), twin(X[:, :3]))
    assert compiled.calls == 8
    assert set(compiled.state_dict()) == {f"_orig_mod.{name}" for name in scripted.state_dict()}


def test_loaded_modules():
    file = io.BytesIO()
    scripted = script(programs.Lstm().eval())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(scripted, file)
        file.seek(0)
        loaded = torch.jit.load(file)
    x = torch.randn(2, 3, 4)
    with torch.no_grad():
        same(smelt.compile(loaded)(x), scripted(x))


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(x.shape[0] * 2, -1).view(x.size(1), x.shape[0] // 2, -1) / x.shape[0]


def test_a_traces_arithmetic_of_sizes_is_no_data():
    traced = trace(_flat, torch.ones(4, 6))
    function = from_torchscript(traced)
    assert function.pieces == [] == function.left
    assert "scalar_tensor" in function.source  # what it divides by is a tensor in the trace too
    for shape in ((4, 6), (8, 2)):
        x = torch.rand(shape)
        same(smelt.compile(traced)(x), traced(x))


def test_traced_modules():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    x = torch.randn(2, 3, 8, 8)
    traced = trace(model.eval(), x)
    smelt.reset()
    with torch.no_grad():
        compiled = smelt.compile(traced)
        same(compiled(x), model(x))
        y = torch.randn(5, 3, 8, 8)
        same(compiled(y), model(y))
    assert all(each.kind == "inference" and not each.fallbacks for each in smelt.reports())


def test_reports_have_the_lines_that_were_scripted():
    function = from_torchscript(script(programs.inplace))
    frame = f'  File "{function.__code__.co_filename}", line 2, in inplace\n'
    assert re.fullmatch(r"programs\.py:\d+ in inplace", parse(frame))
    smelt.reset()
    smelt.compile(script(programs.Lstm().eval()))(torch.ones(2, 3, 4))
    assert all(".py:" in each.where for each in smelt.reports()[-1].choices)


def test_our_own_use_of_torchscript_warns_of_nothing():
    scripted = script(programs.counted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_torchscript(scripted)(X)
