# ruff: noqa: B007, B023, N803
"""Forms that a person writes for a CPU: each is read, printed, read again, and computes what it says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.errors import SmeltError
from smelt.nest.interpreter import run_kernel
from smelt.nest.verify import find_problems
from smelt.script import from_source, structural_equal
from smelt.script import tir as T
from tests.script.test_round_trip import again, same_numbers

HEAD = """
@T.prim_func
def main(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4, 8), "float32"), I: T.Buffer((8,), "int32")):
"""


def computed(body):
    """The buffers before and after, of a body that is read, printed and read again."""
    func = from_source(HEAD + "\n".join(f"    {line}" for line in body.strip("\n").splitlines()))
    assert not find_problems(func.kernel)
    again(func)
    memory = {"A": torch.arange(32.0), "B": torch.zeros(32), "I": torch.arange(8, dtype=torch.int32) * 5 % 8}
    before = {name: each.clone() for name, each in memory.items()}
    run_kernel(func.kernel, memory)
    shapes = {"A": (4, 8), "B": (4, 8), "I": (8,)}
    return [{name: each.view(shapes[name]) for name, each in of.items()} for of in (before, memory)]


def test_a_condition_on_data_and_its_other_side():
    before, after = computed("""
for i, j in T.grid(4, 8):
    if A[i, j] > 10.0 and A[i, j] < 20.0:
        B[i, j] = 1.0
    if A[i, j] > 25.0:
        B[i, j] = 2.0
    else:
        B[i, j] += 0.5
""")
    wanted = ((before["A"] > 10) & (before["A"] < 20)).float()
    wanted = torch.where(before["A"] > 25, 2.0, wanted + 0.5)
    assert torch.equal(after["B"], wanted)


def test_a_condition_is_not_asked_again_where_its_body_changes_what_it_looks_at():
    before, after = computed("""
for i, j in T.grid(4, 8):
    if A[i, j] > 10.0:
        A[i, j] = 0.0
    else:
        A[i, j] = 50.0
""")
    assert torch.equal(after["A"], torch.where(before["A"] > 10, 0.0, 50.0))


def test_what_is_right_of_and_is_not_looked_at_where_the_left_is_false():
    before, after = computed("""
for i in range(8):
    if I[i] > 3 and A[I[i] - 4, 0] > 7.0:
        B[0, i] = 1.0
""")
    at = before["I"].long()
    wanted = (at > 3) & (before["A"][(at - 4).clamp(0, 3), 0] > 7)
    assert torch.equal(after["B"][0], wanted.float())


def test_ramps_and_slices_are_vector_loops():
    before, after = computed("""
for i in range(4):
    B[i, 0:4] = A[i, T.ramp(1, 2, 4)] + T.broadcast(1.0, 4)
    B[i, 4:8] += 3.0
""")
    wanted = torch.cat([before["A"][:, 1::2] + 1, torch.full((4, 4), 3.0)], 1)
    assert torch.equal(after["B"], wanted)


def test_steps_go_where_python_goes():
    _, after = computed("""
for i in T.serial(1, 4, step=2):
    for j in range(7, 8, 3):
        B[i, j] = 1.0
for j in T.unroll(0, 8, step=3):
    B[0, j] = 2.0
""")
    wanted = torch.zeros(4, 8)
    wanted[1::2, 7], wanted[0, ::3] = 1, 2
    assert torch.equal(after["B"], wanted)


def test_continue_leaves_the_rest_of_a_turn():
    before, after = computed("""
for i, j in T.grid(4, 8):
    if (i + j) % 3 == 0:
        B[i, j] = 1.0
        continue
    B[i, j] = 2.0
    if A[i, j] > 20.0:
        continue
    B[i, j] += 2.0
""")
    place = torch.arange(4)[:, None] + torch.arange(8)
    wanted = torch.where(place % 3 == 0, 1.0, torch.where(before["A"] > 20, 2.0, 4.0))
    assert torch.equal(after["B"], wanted)


def test_views_are_the_memory_that_they_show():
    before, after = computed("""
flat = T.decl_buffer((32,), data=A.data)
turned = T.decl_buffer((8, 4), data=B.data, strides=(1, 8))
last = T.decl_buffer((8,), data=A.data, elem_offset=24)
for i, j in T.grid(8, 4):
    turned[i, j] = flat[j * 8 + i] + last[i]
for i in range(4):
    with T.sblock("rows"):
        vi = T.axis.spatial(4, i)
        row = T.match_buffer(B[vi, 2:6], (4,))
        for j in range(4):
            row[j] += 100.0
""")
    wanted = before["A"] + before["A"][3]
    wanted[:, 2:6] += 100
    assert torch.equal(after["B"], wanted)


def test_a_block_without_axes_has_those_of_its_loops():
    before, after = computed("""
for i, j in T.grid(4, 8):
    with T.sblock("copy"):
        B[i, j] = A[i, j]
""")
    assert torch.equal(after["B"], before["A"])


def test_what_a_block_allocates_lives_as_long_as_the_block():
    _, after = computed("""
for i in range(4):
    total = T.sblock_alloc_buffer((1,), "float32")
    if i == 0:
        total[0] = 1.0
    total[0] = total[0] * 2.0
    B[i, 0] = total[0]
""")
    assert after["B"][:, 0].tolist() == [2, 4, 8, 16]


def test_values_are_evaluated_once_where_nothing_uses_them():
    func = from_source(HEAD + "    T.evaluate(A[0, 0] + 1.0)\n    T.evaluate(3)\n    T.evaluate(0)\n")
    assert "T.evaluate(A[0, 0] + T.float32(1.0))" in again(func).script()
    assert "T.evaluate(3)" in func.script() and "T.evaluate(0)" not in func.script()


def test_attributes_stand_beside_loops():
    func = from_source(
        HEAD + '    T.attr(0, "pragma_unroll", 4)\n    for i in range(4):\n        B[i, 0] = 1.0\n'
    )
    assert 'annotations={"pragma_unroll": 4}' in again(func).script()


@pytest.mark.parametrize("kind", ["RuntimeError", "ValueError", "TypeError", "AssertionError"])
def test_assertions_raise_with_their_message(kind):
    func = again(
        from_source(HEAD + f'    assert A[0, 0] > 3.0, ("{kind}", ["too ", "small"])\n    B[0, 0] = 1.0\n')
    )
    memory = {"A": torch.ones(32), "B": torch.zeros(32), "I": torch.zeros(8, dtype=torch.int32)}
    with pytest.raises(__builtins__[kind], match="too small"):
        run_kernel(func.kernel, memory)
    memory["A"] += 3
    run_kernel(func.kernel, memory)
    assert memory["B"][0] == 1


def test_integers_are_divided_to_zero_where_they_may_be_negative():
    _, after = computed("""
for i in range(8):
    I[i] = T.truncmod(i - 5, 3) * 10 + T.truncdiv(i - 5, 3)
""")
    assert after["I"].tolist() == [
        int(float(i - 5) / 3) + 10 * int(torch.fmod(torch.tensor(i - 5), 3)) for i in range(8)
    ]


def test_an_index_that_is_calculated_to_a_loop_is_one():
    before, after = computed("""
for i, j in T.grid(4, 8):
    B[i * 1 + 0, j + 0] = A[i, j]
""")
    assert torch.equal(after["B"], before["A"])


def test_numbers_are_parameters():
    func = again(
        from_source("""
@T.prim_func
def main(A: T.Buffer((8,), "float32"), scale: T.float32, keep: T.bool, n: T.int32):
    for i in range(8):
        A[i] = T.if_then_else(keep and i < n, A[i] * scale, 0.0)
""")
    )
    memory = {"A": torch.ones(8), "scale": torch.tensor([3.0]), "keep": torch.tensor([True])}
    run_kernel(func.kernel, memory, {func.kernel.sizes[0]: 5})
    assert memory["A"].tolist() == [3, 3, 3, 3, 3, 0, 0, 0]


def test_what_is_returned_is_stored_in_one_more_buffer():
    func = again(
        from_source("""
@T.prim_func
def main(A: T.Buffer((8,), "float32")) -> T.float32:
    return A[3] * 2.0
""")
    )
    memory = {"A": torch.arange(8.0), "result": torch.zeros(1)}
    run_kernel(func.kernel, memory)
    assert memory["result"].item() == 6


def test_bits_are_counted():
    _, after = computed("""
for i in range(8):
    I[i] = T.popcount(I[i] - 3)
""")
    numbers = torch.arange(8) * 5 % 8 - 3
    assert after["I"].tolist() == [bin(number & 0xFFFFFFFF).count("1") for number in numbers.tolist()]


def test_what_a_block_says_that_it_reads_is_not_computed():
    plain = """
with T.sblock("b"):
    vi = T.axis.spatial(1, 0)
    B[vi, 0] = A[I[0] % 4, 0]
"""
    _, after = computed(plain)
    said = plain.replace("    B[", "    T.reads(A[I[0] % 4, 0], I[0])\n    T.writes(B[vi, 0])\n    B[")
    _, same = computed(said)
    assert torch.equal(after["B"], same["B"])


FORMS = (
    "if A[i, j] > 3.0 and B[i, j] < 5.0:\n    B[i, j] += 1.0",
    "if A[i, j] > 20.0:\n    A[i, j] = 1.0\nelse:\n    B[i, j] = A[i, j]",
    "if i < 2:\n    continue",
    "B[i, 0:4] = A[i, T.ramp(1, 2, 4)] * T.broadcast(2.0, 4)",
    "for k in T.serial(1, 8, step=3):\n    B[i, k] = B[i, k] + T.Cast('float32', k)",
    "with T.sblock('s'):\n    B[i, j] = T.max(A[i, j], 4.0)",
    "row = T.decl_buffer((32,), data=A.data)\nB[i, j] = row[i * 8 + j]",
    "assert A[i, j] >= 0.0, ('ValueError', ['below', ' 0'])",
    "T.evaluate(A[i, j] + T.exp10(1.0))",
    "v: T.let[T.float32] = A[i, j]\nA[i, j] = 0.0\nB[i, j] = v * v",
    "I[j] = T.truncdiv(i - j, 2) + T.ceildiv(I[j], 3)",
    "B[i, j] = A[i, j] if j < 4 else T.float32(1.0)",
)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(FORMS), min_size=1, max_size=3, unique=True))
def test_forms_one_after_another(forms):
    lines = [f"        {line}" for form in forms for line in form.splitlines()]
    func = from_source(HEAD + "\n".join(["    for i, j in T.grid(4, 8):", *lines]))
    assert not find_problems(func.kernel)
    same_numbers(again(func), func)


# -- what stands outside -------------------------------------------------------------------------------------


def test_python_values_outside():
    dims, scale = (4, 8), {"by": [2.0, 3.0]}

    @T.prim_func
    def made(A: T.Buffer((2, *dims), "float32")):
        for i, j, k in T.grid(*A.shape):
            A[i, j, k] = A[i, j, k] * scale["by"][1] + len(A.shape)

    @T.prim_func
    def plain(A: T.Buffer((2, 4, 8), "float32")):
        for i, j, k in T.grid(2, 4, 8):
            A[i, j, k] = A[i, j, k] * 3.0 + 3

    assert structural_equal(made, plain)


def test_a_name_may_stand_for_several_loops():
    @T.prim_func
    def several(A: T.Buffer((4, 8, 2), "float32"), B: T.Buffer((4, 8), "float32")):
        for *space, k in T.grid(*A.shape):
            B[space] = B[space] + A[(*space, k)]

    @T.prim_func
    def plain(A: T.Buffer((4, 8, 2), "float32"), B: T.Buffer((4, 8), "float32")):
        for i, j, k in T.grid(4, 8, 2):
            B[i, j] = B[i, j] + A[i, j, k]

    assert structural_equal(several, plain)


def test_functions_are_put_in_place_of_their_calls():
    limit = 5

    @T.inline
    def scaled(X, i, *rest, by, **more):
        j = rest[0]
        X[i, j] = T.min(X[i, j] * by, more["most"] + limit)

    def place(i):
        half = i // 2
        return T.meta_var((half, i % 2))

    shifted = lambda x: x + 1.0  # noqa: E731

    @T.prim_func
    def made(A: T.Buffer((4, 2), "float32")):
        for i, limit in T.grid(8, 1):
            half, bit = place(i)
            scaled(A, half, bit, by=2.0, most=A[0, 0])
            A[half, bit] = shifted(A[half, bit])

    @T.prim_func
    def plain(A: T.Buffer((4, 2), "float32")):
        for i, j in T.grid(8, 1):
            A[i // 2, i % 2] = T.min(A[i // 2, i % 2] * 2.0, A[0, 0] + 5)
            A[i // 2, i % 2] = A[i // 2, i % 2] + 1.0

    assert structural_equal(made, plain)


def test_a_function_within_a_script_sees_its_names():
    @T.prim_func
    def made(A: T.Buffer((8,), "int32")):
        for i in range(8):

            @T.inline
            def store(X):
                X[i] = i

            store(A)

    assert structural_equal(
        made,
        from_source("""
@T.prim_func
def made(A: T.Buffer((8,), "int32")):
    for i in range(8):
        A[i] = i
"""),
    )


def test_words_outside_are_texts():
    value = T.exp(0) + 1
    n = T.Var("n", "int32")

    @T.prim_func
    def made(A: T.Buffer((n,), "float32")):
        A[0] = value

    assert "A[0] = T.exp(T.float32(0.0)) + T.float32(1.0)" in again(made).script()
    assert len(made.kernel.sizes) == 1


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, code, words",
    [
        ("B[0, 0:4] = A[0, 0:3]", "SM1204", ["3 and 4"]),
        ("B[0, 0:4] = B[0, 1:5]", "SM1204", ["another place"]),
        ("B[0, 0] = A[0, 0:4]", "SM1204", ["to one element"]),
        ("T.evaluate(T.call_extern('f', A.data))", "SM1204", ["code that the script does not hold"]),
        ("T.reads(A[0, 0])", "SM1204", ["outside of a block"]),
        ('T.attr(0, "key", 1)', "SM1204", ["no loop"]),
        ("C = T.decl_buffer((32,), 'int32', data=A.data)", "SM1207", ["int32"]),
        ("C = T.match_buffer(A[0:2, 0:8], (3, 8))", "SM1204", ["(2, 8)"]),
        ('assert A[0, 0] > 0.0, ("KeyError", ["x"])', "SM1204", ["KeyError"]),
        ("C = T.alloc_buffer((4,))\n    C = T.alloc_buffer((4,))", "SM1204", ["twice"]),
        ("for i in T.thread_binding(8):\n        B[0, i] = 1.0", "SM1204", ["threadIdx.x"]),
        ("C = T.alloc_buffer((m,))", "SM1205", ["m is not defined"]),
        ("B[0, 0] = T.tanh(\n        [1],\n    )", "SM1204", ["^"]),
        ("for i in range(4):\n        return 3", "SM1204", ["return"]),
    ],
)
def test_refusals(body, code, words):
    with pytest.raises(SmeltError) as caught:
        from_source(HEAD + f"    {body}\n")
    assert caught.value.code == code, caught.value
    for word in words:
        assert word in str(caught.value), caught.value


def test_a_place_of_several_lines_is_marked_as_a_whole():
    with pytest.raises(SmeltError) as caught:
        from_source(HEAD + "    B[0, 0] = T.tanh(\n        A,\n        3,\n    ).x\n")
    text = str(caught.value)
    assert " 4 | " in text and " 7 | " in text and text.count("^^") >= 2, text
