"""Words that names in a language must not be: they get a ``_`` at the end."""

_CPP = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t
    class compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield
    decltype default delete do double dynamic_cast else enum explicit export extern false float for friend
    goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
    protected public register reinterpret_cast requires return short signed sizeof static static_assert
    static_cast struct switch template this thread_local throw true try typedef typeid typename union
    unsigned using virtual void volatile wchar_t while xor xor_eq NULL errno assert stdin stdout stderr
    linux unix smelt std states output_views
"""
_SMELT_CPP = """
    error float16 bfloat16 float8_e4m3fn float8_e5m2 dtype_of extents strides_of elements_of tensor_view
    tensor workspace abi1
"""
_RUST = """
    Self
    abstract as async await become box break const continue crate do dyn else enum extern false final fn for
    gen if impl in let loop macro match mod move mut override priv pub ref return self static struct super
    trait true try type typeof unsafe unsized use virtual where while yield
"""
_FORTRAN = """
    self states status message tensors results shapes extents sizes code bytes model_t states_t describe
    failed size shape int any allocated c_loc c_ptr c_null_ptr c_float c_double c_bool c_int c_int8_t
    c_int16_t c_int32_t c_int64_t c_float_complex c_double_complex c_size_t c_intptr_t c_char c_null_char
    max modulo transfer model example
"""

CPP = frozenset(_CPP.split())
SMELT_CPP = frozenset(_SMELT_CPP.split())
"""What namespace smelt has already."""
RUST = frozenset(_RUST.split())
FORTRAN = frozenset(_FORTRAN.split())
"""No word is reserved, but what the module's procedures use must not be hidden by an argument."""
