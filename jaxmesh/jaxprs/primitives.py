"""Facts about JAX's primitives, by name."""

from collections.abc import Mapping

MOVES = frozenset({
    "broadcast_in_dim", "concatenate", "copy", "dynamic_slice", "dynamic_update_slice", "gather", "pad", "rev",
    "reshape", "scatter", "select_n", "slice", "split", "squeeze", "stack", "transpose", "unstack",
})  # fmt: skip
"""Primitives that only move data: every element of a result is an element of an operand, whatever its type."""

RETYPES = frozenset({"pvary"})
"""Primitives that change only over which mesh axes a value is typed as varying."""

COLLECTIVES: Mapping[str, str] = {
    "psum": "all_reduce", "psum_invariant": "all_reduce", "pmax": "all_reduce",
    "pmin": "all_reduce", "all_gather": "all_gather", "all_gather_invariant": "all_gather",
    "all_gather_reduced": "all_gather", "reduce_scatter": "reduce_scatter",
    "unreduced_reduce_scatter": "reduce_scatter", "unreduced_psum": "all_reduce", "all_to_all": "all_to_all",
    "ppermute": "collective_permute", "pbroadcast": "collective_broadcast",
}  # fmt: skip
"""Primitives that move data among the devices, with the names of TTIR's collectives, which `explain` lists."""

EXACT = MOVES | RETYPES | {
    "all_gather", "all_gather_invariant", "all_to_all", "bitcast_convert_type", "iota", "neg", "pbroadcast", "ppermute",
    "stop_gradient",
}  # fmt: skip
"""Primitives without rounding: equal operands give equal results, bit for bit, on every device."""

COMBINES: Mapping[str, str] = {
    "add": "sum", "mul": "prod", "max": "max", "min": "min", "and": "and", "or": "or", "xor": "xor",
}  # fmt: skip
"""The reduction that repeats each primitive of two operands, `sum` of `reduce_sum`."""

SCALAR_BODIES = frozenset({"reduce", "reduce_window", "scatter", "scatter-add", "sort"})
"""Primitives whose bodies work on single numbers."""

CHEAP_TABLES = frozenset({
    "iota", "broadcast_in_dim", "convert_element_type", "reshape", "copy", "squeeze", "transpose",
    "slice", "concatenate", "pad", "rev", "add", "sub", "mul", "div", "neg", "pow", "integer_pow", "square",
    "sqrt", "rsqrt", "exp", "exp2", "log", "sin", "cos", "floor", "sign", "abs", "max", "min", "rem", "eq", "ne",
    "lt", "le", "gt", "ge", "and", "or", "not", "xor", "select_n", "clamp",
})  # fmt: skip
"""Primitives that masks, position tables and fills consist of: cheap, element by element, equal on every device."""

CALLBACKS = frozenset({"debug_callback", "debug_print", "io_callback", "pure_callback"})
"""Primitives that call Python on the host."""
CALLS_HOST = "it calls Python on the host amid the program, and TTIR has no such call; trace the program without it"
"""Why they have no text."""

MACHINE_BITS = (
    "its random bits are those of the machine's own generator, for which TTIR has no operation; "
    "make the key by jax.random.key(seed, impl='threefry2x32')"
)
"""Why keys of the generators `rbg` and `unsafe_rbg` have no text."""

LINALG = frozenset({
    "cholesky", "eig", "eigh", "geqp3", "geqrf", "hessenberg", "householder_product", "lu", "ormqr", "qr", "schur",
    "svd", "triangular_solve", "tridiagonal", "tridiagonal_solve",
})  # fmt: skip
"""Primitives that decompose matrices or solve with them: the last two dims are the matrix, the others a batch."""
