"""Plans written by hand, with C++ written by hand, through the executor."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.errors import SmeltError, VerificationError
from smelt.runtime.cache import Cache, key_of
from smelt.runtime.executor import build, render
from smelt.runtime.library import Library, compile_unit
from smelt.runtime.plan import (
    AllocStep,
    ArenaTensor,
    ExternStep,
    FreeStep,
    NativeStep,
    Plan,
    Ref,
    SizeRef,
    TensorSpec,
    ViewRef,
)
from smelt.runtime.plan_json import from_json, to_json

UNIT = """
#define EXPORT extern "C" __attribute__((visibility("default")))
typedef long long int64;

EXPORT int64 add(char*, void* a, void* b, void* out, int64 n) {
  for (int64 i = 0; i < n; i++) ((float*)out)[i] = ((float*)a)[i] + ((float*)b)[i];
  return 0;
}
EXPORT int64 negate(char*, void* a, int64 n) {
  for (int64 i = 0; i < n; i++) ((float*)a)[i] = -((float*)a)[i];
  return 0;
}
EXPORT int64 add_into_arena(char* arena, void* a, void* b, int64 n) {
  float* out = (float*)(arena + 64);
  for (int64 i = 0; i < n; i++) out[i] = ((float*)a)[i] + ((float*)b)[i];
  return 0;
}
EXPORT int64 twice_from_arena(char* arena, void* out, int64 n) {
  float* a = (float*)(arena + 64);
  for (int64 i = 0; i < n; i++) ((float*)out)[i] = a[i] * 2;
  return 0;
}
EXPORT int64 transposed_sum(char*, void* a, void* out, int64 rows, int64 columns) {
  for (int64 j = 0; j < columns; j++) {
    float s = 0;
    for (int64 i = 0; i < rows; i++) s += ((float*)a)[j * rows + i];
    ((float*)out)[j] = s;
  }
  return 0;
}
EXPORT int64 check(char*, void* a, int64 n) {
  for (int64 i = 0; i < n; i++) {
    if (((int64*)a)[i] < 0) return 1;
    if (((int64*)a)[i] > 9) return 2;
    if (((int64*)a)[i] == 7) return 3;
  }
  return 0;
}
EXPORT int64 count_arguments(char*, void* p0, void* p1, void* p2, void* p3, void* p4, void* p5, void* p6,
                             void* p7, void* p8, int64 s0, int64 s1) {
  float total = 0;
  void* all[] = {p0, p1, p2, p3, p4, p5, p6, p7};
  for (int i = 0; i < 8; i++) total += ((float*)all[i])[0] * (i + 1);
  ((float*)p8)[0] = total + s0 * 1000 + s1;
  return 0;
}
"""


@pytest.fixture
def library(compile_text: Callable[[str], Library]) -> Library:
    return compile_text(UNIT)


def spec(
    name: str, *shape: Any, dtype: str = "float32", strides: tuple[Any, ...] | None = None
) -> TensorSpec:
    if strides is None:
        steps: list[Any] = [1]
        for size in reversed(shape[1:]):
            steps.append(
                steps[-1] * size
                if isinstance(size, int) and isinstance(steps[-1], int)
                else f"{steps[-1]}*{size}"
            )
        strides = tuple(reversed(steps)) if shape else ()
    return TensorSpec(name, dtype, shape, strides)


def plan(inputs: list[str | None], steps: list[Any], outputs: list[Any], **more: Any) -> Plan:
    made = Plan(
        tuple(inputs),
        tuple(more.get("symbols", ())),
        tuple(more.get("constants", ())),
        more.get("arena_bytes", 0),
        tuple(more.get("arena", ())),
        tuple(steps),
        tuple(outputs),
    )
    assert to_json(from_json(to_json(made))) == to_json(made)
    return from_json(to_json(made))


def test_static_native_call_clears_its_arguments(library: Library) -> None:
    call = build(
        plan(
            ["x", "y"],
            [AllocStep(spec("out", 16)), NativeStep("add", ("x", "y", "out"), (16,))],
            [Ref("out")],
        ),
        library,
        {},
    )
    x, y = torch.rand(16), torch.rand(16)
    args = [x, y]
    (out,) = call(args)
    assert args == []
    assert torch.equal(out, x + y)
    assert call._boxed_call is True  # type: ignore[attr-defined]


def test_inputs_are_freed_when_the_plan_says_so(library: Library) -> None:
    seen: list[int] = []

    class Watched:
        pass

    steps = [
        AllocStep(spec("out", 4)),
        NativeStep("add", ("x", "x", "out"), (4,)),
        FreeStep(("x",)),
        ExternStep("aten.neg.default", (Ref("out"),), {}, ("last",)),
    ]
    call = build(plan(["x"], steps, [Ref("last")]), library, {})
    x = torch.ones(4)
    x.watched = Watched()  # type: ignore[attr-defined]
    import weakref

    weakref.finalize(x.watched, seen.append, 1)  # type: ignore[attr-defined]
    args = [x]
    del x
    (out,) = call(args)
    gc.collect()
    assert seen == [1]
    assert torch.equal(out, torch.full((4,), -2.0))


def test_dynamic_sizes_one_function_ten_sizes(library: Library) -> None:
    steps = [
        NativeStep("add_into_arena", ("x", "y"), ("s0*s1",)),
        ExternStep("aten.mm.default", (Ref("mid"), Ref("w")), {}, ("prod",), out=True),
        AllocStep(spec("out", "s0", "s1")),
        NativeStep("twice_from_arena", ("out",), ("s0*s1",)),
    ]
    arena = [
        ArenaTensor(TensorSpec("mid", "float32", ("s0", "s1"), ("s1", 1)), 64),
        ArenaTensor(TensorSpec("prod", "float32", ("s0", 3), (3, 1)), "64 + (s0*s1*4 + 63)//64*64"),
    ]
    made = plan(
        ["s0", "x", "s1", "y", None, "w"],
        [*steps, ExternStep("aten.add.Tensor", (Ref("prod"), 1.0), {"alpha": 2}, ("res",))],
        [Ref("out"), Ref("res"), SizeRef("s0*s1"), None, 5, SizeRef("s1")],
        symbols=["s0", "s1"],
        arena_bytes="64 + (s0*s1*4 + 63)//64*64 + s0*12",
        arena=arena,
    )
    call = build(made, library, {})
    for rows, columns in [
        (2, 3),
        (5, 4),
        (1, 1),
        (64, 32),
        (2, 3),
        (7, 1),
        (0, 3),
        (3, 5),
        (3, 5),
        (100, 10),
    ]:
        x, y, w = torch.rand(rows, columns), torch.rand(rows, columns), torch.rand(columns, 3)
        out, res, numel, nothing, five, s1 = call([rows, x, columns, y, torch.zeros(1), w])
        torch.testing.assert_close(out, (x + y) * 2)
        torch.testing.assert_close(res, (x + y) @ w + 2)
        assert (numel, nothing, five, s1) == (rows * columns, None, 5, columns)


def test_out_variant_writes_the_planned_memory_and_native_reads_it(library: Library) -> None:
    steps = [
        ExternStep(
            "aten.addmm.default",
            (Ref("b"), Ref("x"), ViewRef("w", (3, 4), (1, 3), 0)),
            {},
            ("mid",),
            out=True,
        ),
        AllocStep(spec("out", 2, 4)),
        NativeStep("twice_from_arena", ("out",), (8,)),
    ]
    made = plan(
        ["x", "w", "b"], steps, [Ref("out")], arena_bytes=128, arena=[ArenaTensor(spec("mid", 2, 4), 64)]
    )
    text = render(made)
    assert "_aten_addmm_out(b, x, " in text and "out=mid" in text
    call = build(made, library, {})
    for _ in range(3):
        x, w, b = torch.rand(2, 3), torch.rand(4, 3), torch.rand(4)
        torch.testing.assert_close(call([x, w, b])[0], (x @ w.t() + b) * 2)


@pytest.mark.parametrize("target, args", [("bmm", ["a", "b"]), ("baddbmm", ["c", "a", "b"])])
def test_batched_products_have_out_variants(target: str, args: list[str]) -> None:
    steps = [
        ExternStep(f"aten.{target}.default", tuple(Ref(arg) for arg in args), {}, ("mid",), out=True),
        ExternStep("aten.clone.default", (Ref("mid"),), {}, ("out",)),
    ]
    call = build(
        plan(
            ["a", "b", "c"], steps, [Ref("out")], arena_bytes=64, arena=[ArenaTensor(spec("mid", 2, 3, 2), 0)]
        ),
        None,
        {},
    )
    a, b, c = torch.rand(2, 3, 4), torch.rand(2, 4, 2), torch.rand(2, 3, 2)
    expected = torch.bmm(a, b) if target == "bmm" else torch.baddbmm(c, a, b)
    torch.testing.assert_close(call([a, b, c])[0], expected)


def test_checks_raise_what_the_plan_says_and_the_next_call_works(library: Library) -> None:
    errors = (
        ("IndexError", "index out of range"),
        ("RuntimeError", "too large"),
        ("ZeroDivisionError", "seven"),
    )
    made = plan(
        ["x"],
        [
            NativeStep("check", ("x",), (3,), errors),
            ExternStep("aten.neg.default", (Ref("x"),), {}, ("out",), out=True),
        ],
        [],
        arena_bytes=64,
        arena=[ArenaTensor(spec("out", 3, dtype="int64"), 0)],
    )
    call = build(made, library, {})
    with pytest.raises(IndexError, match="out of range"):
        call([torch.tensor([0, -1, 2])])
    with pytest.raises(RuntimeError, match="too large"):
        call([torch.tensor([0, 1, 20])])
    with pytest.raises(ZeroDivisionError, match="seven"):
        call([torch.tensor([7, 1, 20])])
    assert call([torch.tensor([1, 2, 3])]) == ()


def test_a_check_without_a_message_is_reported(library: Library) -> None:
    call = build(plan(["x"], [NativeStep("check", ("x",), (1,))], []), library, {})
    with pytest.raises(SmeltError, match="SM0410"):
        call([torch.tensor([-1])])


def test_unknown_exception_name_is_refused(library: Library) -> None:
    made = plan(["x"], [NativeStep("check", ("x",), (1,), (("print", "x"),))], [])
    with pytest.raises(SmeltError, match="SM0409"):
        build(made, library, {})


def test_errors_of_aten_pass_through_and_the_arena_is_kept_usable(library: Library) -> None:
    made = plan(
        ["x", "w"],
        [
            ExternStep("aten.mm.default", (Ref("x"), Ref("w")), {}, ("mid",), out=True),
            AllocStep(spec("out", 2, 2)),
            ExternStep("aten.copy_.default", (Ref("out"), Ref("mid")), {}, (None,)),
        ],
        [Ref("out")],
        arena_bytes=16,
        arena=[ArenaTensor(spec("mid", 2, 2), 0)],
    )
    call = build(made, library, {})
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        call([torch.rand(2, 3), torch.rand(2, 2)])
    x, w = torch.rand(2, 2), torch.rand(2, 2)
    torch.testing.assert_close(call([x, w])[0], x @ w)


def test_mutated_input_is_changed_in_place(library: Library) -> None:
    call = build(plan(["x"], [NativeStep("negate", ("x",), (3,))], []), library, {})
    x = torch.tensor([1.0, -2.0, 3.0])
    call([x])
    assert x.tolist() == [-1.0, 2.0, -3.0]


def test_input_that_is_not_contiguous_is_passed_as_it_lies(library: Library) -> None:
    made = plan(
        ["x"], [AllocStep(spec("out", 2)), NativeStep("transposed_sum", ("x", "out"), (3, 2))], [Ref("out")]
    )
    base = torch.arange(7.0)
    x = base[1:].view(2, 3).t()
    assert torch.equal(build(made, library, {})([x])[0], x.sum(0))


def test_views_of_inputs_and_results(library: Library) -> None:
    outputs = [
        ViewRef("x", (3, 2), (1, 3), 0),
        ViewRef("x", (2, 3), (3, 1), 0),
        ViewRef("x", (2,), (1,), 4),
        ViewRef("out", (2, 2), (2, 1), 2),
        ViewRef("out", ("s0",), (1,), "s0 // 2"),
    ]
    steps = [AllocStep(spec("out", 6)), NativeStep("add", ("x", "x", "out"), (6,))]
    call = build(plan(["x", "s0"], steps, outputs, symbols=["s0"]), library, {})
    base = torch.arange(8.0)
    x = base[1:7].view(2, 3)
    transposed, same, tail, square, dynamic = call([x, 3])
    assert torch.equal(transposed, x.t())
    assert same is x
    assert tail.tolist() == [5.0, 6.0]
    assert square.tolist() == [[6.0, 8.0], [10.0, 12.0]]
    assert dynamic.tolist() == [4.0, 6.0, 8.0]
    tail.fill_(0)
    assert base.tolist() == [0, 1, 2, 3, 4, 0, 0, 7]


def test_views_over_the_arena_are_made_once(library: Library) -> None:
    made = plan(
        ["x", "y", "w"],
        [
            NativeStep("add_into_arena", ("x", "y"), (6,)),
            ExternStep("aten.mm.default", (ViewRef("mid", (3, 2), (2, 1), 0), Ref("w")), {}, ("out",)),
            ExternStep("aten.clone.default", (ViewRef("mid", (2,), (1,), 4),), {}, ("tail",)),
        ],
        [Ref("out"), Ref("tail")],
        arena_bytes=88,
        arena=[ArenaTensor(spec("mid", 6), 64)],
    )
    body = render(made).split("def _arena_bytes")[0]
    assert "_tensors(_arena)" in body and "as_strided" not in body and "_view(" not in body
    call = build(made, library, {})
    for _ in range(2):
        x, y, w = torch.rand(6), torch.rand(6), torch.rand(2, 2)
        out, tail = call([x, y, w])
        torch.testing.assert_close(out, (x + y).view(3, 2) @ w)
        torch.testing.assert_close(tail, (x + y)[4:])


def test_constants_and_literals(library: Library) -> None:
    steps = [
        AllocStep(spec("out", 3)),
        NativeStep("add", ("x", "c", "out"), (3,)),
        NativeStep("add", ("out", "c", "out"), (3,)),
        ExternStep("aten.clamp.default", (Ref("out"), None, float("inf")), {}, ("low",)),
        ExternStep(
            "aten.full.default", ([2, SizeRef("s0")], float("nan")), {"dtype": torch.float64}, ("full",)
        ),
        ExternStep(
            "aten._to_copy.default", (Ref("c"),), {"device": torch.device("cpu"), "dtype": torch.int8}, ("i",)
        ),
        ExternStep("aten.cat.default", ([Ref("x"), ViewRef("c", (1,), (1,), 2), Ref("c")],), {}, ("cat",)),
        ExternStep("aten.gelu.default", (Ref("x"),), {"approximate": "tanh"}, ("gelu",)),
        ExternStep("aten.clone.default", (Ref("im"),), {"memory_format": torch.channels_last}, ("last",)),
        ExternStep(
            "aten.empty_strided.default",
            ([2], [1]),
            {"layout": torch.strided, "pin_memory": False},
            ("empty",),
        ),
    ]
    outputs = [Ref(name) for name in ("low", "full", "i", "cat", "gelu", "last", "empty")]
    made = plan(["x", "im", "s0"], steps, outputs, symbols=["s0"], constants=["c"])
    c = torch.tensor([1.0, 2.0, 3.0])
    x, image = torch.rand(3), torch.rand(1, 2, 3, 3)
    low, full, i, cat, gelu, last, empty = build(made, library, {"c": c})([x, image, 4])
    torch.testing.assert_close(low, x + c + c)
    assert full.dtype == torch.float64 and full.shape == (2, 4) and full.isnan().all()
    assert i.dtype == torch.int8 and i.tolist() == [1, 2, 3]
    assert torch.equal(cat, torch.cat([x, c[2:], c]))
    torch.testing.assert_close(gelu, torch.nn.functional.gelu(x, approximate="tanh"))
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert empty.shape == (2,)
    with pytest.raises(SmeltError, match=r"SM0407.*: c"):
        build(made, library, {})


def test_several_results_unused_results_and_lists() -> None:
    steps = [
        ExternStep(
            "aten.native_layer_norm.default", (Ref("x"), [4], None, None, 1e-5), {}, ("norm", None, "rstd")
        ),
        ExternStep("aten.split.Tensor", (Ref("norm"), 1), {}, ("first", "second")),
        ExternStep("aten.split.Tensor", (Ref("norm"), 2), {}, ("whole",)),
        ExternStep("aten._local_scalar_dense.default", (Ref("n"),), {}, (None,), symbol="u0"),
        ExternStep("aten.arange.default", (SizeRef("u0 + 1"),), {}, ("range",)),
    ]
    outputs = [
        Ref("first"),
        Ref("second"),
        Ref("whole"),
        Ref("rstd"),
        Ref("range"),
        SizeRef("max(u0, 9) % 4"),
    ]
    call = build(plan(["x", "n"], steps, outputs, symbols=["u0"]), None, {})
    x = torch.rand(2, 4)
    first, second, whole, rstd, numbers, size = call([x, torch.tensor(3)])
    norm = torch.nn.functional.layer_norm(x, [4])
    torch.testing.assert_close(torch.cat([first, second]), norm)
    torch.testing.assert_close(whole, norm)
    assert rstd.shape == (2, 1)
    assert numbers.tolist() == [0, 1, 2, 3] and size == 1


def test_a_result_laid_out_otherwise_is_copied_into_the_planned_layout(library: Library) -> None:
    steps = [
        ExternStep("aten.t.default", (Ref("x"),), {}, ("t",), specs=(spec("t", 3, 2),)),
        AllocStep(spec("out", 6)),
        NativeStep("add", ("t", "t", "out"), (6,)),
    ]
    call = build(plan(["x"], steps, [Ref("out"), Ref("t")]), library, {})
    x = torch.arange(6.0).view(2, 3)
    out, t = call([x])
    assert torch.equal(out, x.t().reshape(-1) * 2)
    assert t.stride() == (2, 1) and torch.equal(t, x.t())


def test_a_result_of_another_shape_is_an_error() -> None:
    steps = [ExternStep("aten.neg.default", (Ref("x"),), {}, ("y",), specs=(spec("y", 3),))]
    call = build(plan(["x"], steps, [Ref("y")]), None, {})
    assert call([torch.ones(3)])[0].tolist() == [-1, -1, -1]
    with pytest.raises(SmeltError, match="SM0406"):
        call([torch.ones(4)])


def test_names_that_are_no_identifiers_or_collide(library: Library) -> None:
    inputs = ["x.weight", "x_weight", "class", "max", "call", "_base", "1"]
    steps = [AllocStep(spec("sum", 2)), NativeStep("add", ("x.weight", "x_weight", "sum"), (2,))]
    outputs = [
        Ref("sum"),
        Ref("class"),
        Ref("max"),
        Ref("call"),
        Ref("_base"),
        Ref("1"),
        SizeRef("max(3, 4)"),
    ]
    values = [torch.full((2,), float(i)) for i in range(7)]
    out = build(plan(inputs, steps, outputs), library, {})(list(values))
    assert out[0].tolist() == [1, 1] and out[6] == 4
    assert all(result is value for result, value in zip(out[1:6], values[2:]))


def test_many_arguments(library: Library) -> None:
    inputs = [f"x{i}" for i in range(8)]
    steps = [
        AllocStep(spec("out")),
        NativeStep("count_arguments", (*inputs, "out"), ("s0", "s0 * 2")),
    ]
    call = build(plan([*inputs, "s0"], steps, [Ref("out")], symbols=["s0"]), library, {})
    (out,) = call([*(torch.tensor([float(i)]) for i in range(8)), 3])
    assert out.item() == sum(i * (i + 1) for i in range(8)) + 3000 + 6


def test_gradients_are_not_recorded() -> None:
    steps = [ExternStep("aten.mm.default", (Ref("x"), Ref("x")), {}, ("mid",), out=True)]
    steps.append(ExternStep("aten.neg.default", (Ref("mid"),), {}, ("out",)))
    made = plan(["x"], steps, [Ref("out")], arena_bytes=16, arena=[ArenaTensor(spec("mid", 2, 2), 0)])
    call = build(made, None, {})
    x = torch.rand(2, 2, requires_grad=True)
    assert not call([x])[0].requires_grad
    assert torch.is_grad_enabled()
    with torch.inference_mode():
        call([x])
    torch.testing.assert_close(call([x])[0], -(x @ x).detach())


def test_first_call_in_inference_mode_leaves_the_arena_usable_outside() -> None:
    steps = [ExternStep("aten.mm.default", (Ref("x"), Ref("x")), {}, ("mid",), out=True)]
    steps.append(ExternStep("aten.neg.default", (Ref("mid"),), {}, ("out",)))
    made = plan(["x"], steps, [Ref("out")], arena_bytes=16, arena=[ArenaTensor(spec("mid", 2, 2), 0)])
    call = build(made, None, {})
    x = torch.rand(2, 2)
    with torch.inference_mode():
        first = call([x])[0].clone()
    assert torch.equal(call([x])[0], first)


def test_function_can_be_built_before_the_library_is_there(toolchain: Any, tmp_path: Any) -> None:
    job = compile_unit(UNIT, toolchain, Cache(tmp_path), key_of("early"))
    made = plan(
        ["x", "y"], [AllocStep(spec("out", 4)), NativeStep("add", ("x", "y", "out"), (4,))], [Ref("out")]
    )
    call = build(made, job, {})
    for _ in range(2):
        assert call([torch.ones(4), torch.ones(4)])[0].tolist() == [2] * 4
    assert not job.cached and job.seconds > 0


def test_plan_with_native_steps_needs_a_library() -> None:
    call = build(plan(["x"], [NativeStep("negate", ("x",), (3,))], []), None, {})
    with pytest.raises(SmeltError, match=r"SM0408.*negate"):
        call([torch.ones(3)])


def test_threads_do_not_share_an_arena(library: Library) -> None:
    made = plan(
        ["x", "y"],
        [
            NativeStep("add_into_arena", ("x", "y"), (4096,)),
            AllocStep(spec("out", 4096)),
            NativeStep("twice_from_arena", ("out",), (4096,)),
        ],
        [Ref("out")],
        arena_bytes=64 + 4096 * 4,
    )
    call = build(made, library, {})
    wrong: list[int] = []

    def work(number: int) -> None:
        x = torch.full((4096,), float(number))
        for _ in range(200):
            if not torch.equal(call([x, x])[0], x * 4):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    "made, message",
    [
        (Plan(("x",), (), (), 0, (), (), (Ref("y"),)), "y is used but not there"),
        (Plan(("x", "x"), (), (), 0, (), (), ()), "x is defined twice"),
        (Plan(("x",), (), (), 0, (), (FreeStep(("x",)),), (Ref("x"),)), "x is used but not there"),
        (Plan((), ("s0",), (), 0, (), (), (SizeRef("s0"),)), "symbol s0 in 's0' has no value yet"),
        (Plan((), (), (), 0, (), (), (SizeRef("__import__('os')"),)), "not a size"),
        (Plan((), (), (), 0, (), (), (SizeRef("(lambda: 3)()"),)), "not a size"),
        (Plan((), (), (), 0, (), (), (SizeRef("'a'.join"),)), "not a size"),
        (
            Plan(("x",), (), (), 16, (ArenaTensor(spec("a", 4), 0),), (), (Ref("a"),)),
            "output a lies in the arena",
        ),
        (
            Plan(("x",), (), (), 0, (), (ExternStep("aten.neg.default", (Ref("x"),), {}, ("a", "b")),), ()),
            "gives one",
        ),
        (
            Plan(("x",), (), (), 0, (), (ExternStep("aten.neg.default", (Ref("x"),), {}, (), True),), ()),
            "one output",
        ),
        (
            Plan(("x",), (), (), 0, (), (ExternStep("aten.neg.default", ({1},), {}, ("a",)),), ()),
            "cannot hold a set",
        ),
        (Plan(("max",), ("max",), (), 0, (), (), ()), "cannot be a symbol's name"),
    ],
)
def test_plans_that_contradict_themselves(made: Plan, message: str) -> None:
    with pytest.raises(VerificationError, match=message) as caught:
        render(made)
    assert caught.value.code == "SM0405"


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(VerificationError) as caught:
        render(Plan((), (), (), 0, (), (NativeStep("f", ("a", "b"), ("s9",)),), (Ref("c"),)))
    assert [str(problem) for problem in caught.value.problems] == [
        "a is used but not there  (at step 0)",
        "b is used but not there  (at step 0)",
        "symbol s9 in 's9' has no value yet  (at step 0)",
        "c is used but not there  (at outputs)",
    ]


def test_operator_that_torch_lacks() -> None:
    with pytest.raises(SmeltError, match="SM0403"):
        render(Plan(("x",), (), (), 0, (), (ExternStep("aten.no_such_thing.default", (), {}, ("y",)),), ()))
    with pytest.raises(SmeltError, match="SM0404"):
        render(
            Plan(
                ("x",),
                (),
                (),
                0,
                (),
                (ExternStep("aten.view.default", (Ref("x"), [1]), {}, ("x",), True),),
                (),
            )
        )
