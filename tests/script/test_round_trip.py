"""What is printed is read back as the same program."""

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from smelt import script, te, tir
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import For, LoopKind
from smelt.nest.primitives import tabulate
from smelt.nest.tree import loops, rewritten, with_body
from smelt.records import replace
from smelt.script import from_source
from tests.te.test_random_programs import programs


def again(func):
    """The function read back from its text, which both agree on."""
    text = func.script()
    found = from_source(text)
    script.assert_structural_equal(found, func)
    assert found.script() == text
    assert script.structural_hash(found) == script.structural_hash(func)
    return found


def filled(func, seed=0):
    generator = torch.Generator().manual_seed(seed)
    memory = {}
    for param in func.kernel.params:
        count = 1
        for size in param.shape:
            count *= int(size)
        numbers = torch.randint(0, 5, (count,), generator=generator)
        memory[param.name] = numbers.to(param.dtype)
    run_kernel(func.kernel, memory)
    return memory


def same_numbers(one, other):
    left, right = filled(one), filled(other)
    assert all(torch.equal(left[name], right[name]) for name in left)


@st.composite
def te_programs(draw):
    try:
        return draw(programs())
    except AttributeError:  # an index less itself is Python's 0, which has no dtype
        reject()


@settings(max_examples=60, deadline=None)
@given(te_programs())
def test_random_programs(program):
    inputs, results = program
    func = te.create_prim_func([tensor for tensor, _ in (*inputs, *results)])
    same_numbers(again(func), func)


@pytest.mark.parametrize("kind", [LoopKind.PARALLEL, LoopKind.UNROLL, LoopKind.VECTOR, LoopKind.JAM])
def test_kinds_of_loops(kind):
    func = from_source(SUM)

    def changed(stmt):
        notes = (("pragma", "x"),)
        return (
            [replace(stmt, kind=kind, notes=notes, step=1)]
            if isinstance(stmt, For) and stmt.label == "i"
            else None
        )

    kernel = func.kernel
    again(replace(func, kernel=with_body(kernel, rewritten(kernel.body, changed))))


SUM = """
@T.prim_func
def main(A: T.Buffer((8, 16), "float32"), B: T.Buffer((8,), "float32")):
    T.func_attr({"tir.noalias": True})
    for i, k in T.grid(8, 16):
        with T.block("B"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            T.reads(A[v_i, v_k])
            T.writes(B[v_i])
            with T.init():
                B[v_i] = T.float32(0.0)
            B[v_i] = B[v_i] + A[v_i, v_k]
"""


def test_a_value_stays_before_what_changes_it():
    func = from_source("""
@T.prim_func
def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        v: T.float32 = A[i]
        A[i] = T.float32(2.0)
        B[i] = v * v
    for i in range(8):
        w: T.float32 = A[i] + B[i]
        for j in range(8):
            A[j] = w * B[j]
""")
    same_numbers(again(func), func)
    assert "v: T.float32 = A[i]" in func.script()


def test_a_position_stays_before_what_changes_it():
    func = from_source("""
@T.prim_func
def main(I: T.Buffer((8,), "int64"), A: T.Buffer((8,), "float32")):
    for i in range(8):
        at = T.smelt_index(I[i], 8, True, "IndexError")
        I[i] = T.int64(3)
        A[at] = T.float32(1.0)
""")
    same_numbers(again(func), func)


def test_both_vocabularies_are_read():
    today = (
        SUM.replace("T.block", "T.sblock")
        .replace("@T.prim_func", "@T.prim_func(s_tir=True)")
        .replace("tir.no", "tirx.no")
    )
    one, other = from_source(SUM), from_source(today)
    assert "T.sblock(" in one.script() and "T.block(" in one.script(dialect="tvm-0.17")
    assert script.structural_equal(replace(one, attrs={}), replace(other, attrs={}))
    assert script.structural_equal(from_source(one.script(dialect="tvm-0.17")), one)


def test_names_do_not_count():
    assert script.structural_equal(from_source(SUM), from_source(SUM.replace("v_i", "x").replace("A", "Z")))
    assert not script.structural_equal(from_source(SUM), from_source(SUM.replace("16", "17")))


def test_conditions_and_symbolic_sizes():
    func = from_source("""
@T.prim_func
def main(var_A: T.handle, var_B: T.handle):
    n = T.int32()
    A = T.match_buffer(var_A, (n, 4), "int32")
    B = T.match_buffer(var_B, (n, 4), "int32")
    for i_0, i_1, j in T.grid((n + 7) // 8, 8, 4):
        with T.block("B"):
            vi = T.axis.spatial(n, i_0 * 8 + i_1)
            vj = T.axis.spatial(4, j)
            T.where(i_0 * 8 + i_1 < n)
            B[vi, vj] = T.if_then_else(vi < 3 and 1 <= vj, A[vi, vj], 7)
""")
    assert "T.where(" in again(func).script()


def test_a_block_says_its_conditions_once_and_in_their_order():
    sch = tir.Schedule(from_source(SUM))
    block = sch.get_block("B")
    for _ in range(2):
        sch.split(sch.get_loops(block)[0], [None, 3])
        sch.split(sch.get_loops(block)[-1], [None, 5])
    assert sch.mod.script().count("T.where(") == 1
    again(sch.mod["main"])


def test_a_module_prints_its_functions_in_order():
    module = script.IRModule({"main": from_source(SUM), "add": from_source(SUM)})
    text = module.script()
    assert text.index("def add") < text.index("def main")
    found = from_source(text)
    assert script.structural_equal(found, module) and found.script() == text


def test_parameters_stand_in_the_order_of_the_function() -> None:
    """Not in that of the lines that say what the handles are."""
    text = """
@T.prim_func
def f(b: T.handle, a: T.handle):
    A = T.match_buffer(a, (4,))
    B = T.match_buffer(b, (4,))
    for i in range(4):
        with T.block("B"):
            v = T.axis.spatial(4, i)
            B[v] = A[v] + T.float32(1.0)
"""
    function = script.from_source(text)
    assert [param.name for param in function.kernel.params] == ["B", "A"]


@pytest.mark.parametrize("new", [lambda i, j, k: (j, i, k), lambda i, j, k: (i // 2, i % 2, j, k), None])
def test_axes_and_buffers_may_be_called_as_values_are(new) -> None:
    """Values of a nest are v0, v1 …; so are the axes of a new layout, and a person's buffers may be."""
    A, B = te.placeholder((4, 6, 5), "int32", name="v4"), te.placeholder((4, 6, 5), name="v5")
    k = te.reduce_axis((0, 5), "k")
    best = te.compute((4, 6), lambda i, j: te.argmax((A[i, j, k], B[i, j, k]), axis=k), name="best")
    sch = tir.Schedule(te.create_prim_func([A, B, *best]))
    if new is not None:
        sch.transform_block_layout("best", new)
    same_numbers(again(sch.func), sch.func)


FEW_BITS = """
@T.prim_func
def main(A: T.Buffer((16,), "int32"), B: T.Buffer((16,), "float32")):
    for i in range(16):
        B[i] = T.Cast("float32", T.bitwise_and(A[i], 15)) * T.float32(0.5)
"""


def test_lookups_in_a_table():
    func = from_source(FEW_BITS)
    (loop,) = loops(func.kernel.body)
    made = replace(func, kernel=tabulate(func.kernel, loop.var))
    assert "T.smelt_lookup(" in made.script()
    same_numbers(again(made), func)
