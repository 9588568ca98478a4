"""Rules of the real functions, measured by calling ttnn 0.81.1 on a mock cluster.

The definition of an op states the element types of its function once (`definitions.py`). The other rules are facts
about calls: numbers beside tensors, tensors in rows, output tensors, and arguments that leave a result undefined.
`tests/system/test_real_ttnn_calls.py` compares random calls with the library.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxmesh.dialects.ttnn.forms import CREATED, I32, REALS
from jaxmesh.ttnn.rules import devices, elementwise, moves, neural, reductions
from jaxmesh.ttnn.rules.definitions import DEFINITIONS, defined
from jaxmesh.ttnn.rules.elementwise import BITS, PAIRS, UNARY
from jaxmesh.ttnn.rules.given import TILE, Form, Given, Result, Rule

RULES: Mapping[str, Rule] = {
    **{callee: defined for callee, op in DEFINITIONS.items() if op.accepts is not CREATED},
    **devices.RULES, **elementwise.RULES, **moves.RULES, **neural.RULES, **reductions.RULES,
}  # fmt: skip
"""By the dotted name of the function."""


# --- output tensors, also unlike the results -------------------------------------------------------------------------

PARAMETERS = ("output_tensor", "optional_output_tensor", "optional_tensor", "output", "out", "input_grad")
"""Names of the argument for a tensor on the devices to write the result to."""

UNREAD = frozenset({"ttnn.cumsum", "ttnn.cumprod", "ttnn.embedding"})
"""Functions that give their own result beside an output tensor of another type."""
_OF_ANY_TYPE = frozenset({*PAIRS, *reductions.OF_ANY_TYPE, "ttnn.matmul", "ttnn.linear", "ttnn.where"})
_OF_ANY_FLOAT = frozenset({*UNARY, "ttnn.leaky_relu", "ttnn.elu", "ttnn.round"})


def written(given: Given, results: Sequence[Result]) -> Sequence[Result]:
    """Returns the results of a call, or those in the form of its output tensor if it has one."""
    out = next((x for name in PARAMETERS if isinstance(x := given[name], Form)), None)
    if out is None or len(results) != 1:
        return results
    (result,) = results
    if given.callee in UNREAD:
        shape = result.shape if given.callee == "ttnn.embedding" else given.tensors()[0].shape
        given.require(shape in (None, out.shape), "takes an output tensor of its operand's shape", "Shape mismatch")
        return results
    written_as = Result(out.dtype, out.layout, result.computed, out.shape)
    if given.callee == "ttnn.full":
        return [written_as]
    given.on_devices(out)
    given.require(
        given.callee != "ttnn.concat", "takes no output tensor", "optional output tensor currently unsupported"
    )
    clamps = given.callee == "ttnn.clamp"
    bounds = clamps and any(isinstance(given[n], Form) for n in ("min", "max"))
    numbered = given.callee in BITS and len(given.tensors()) == 2
    if (given.callee in _OF_ANY_TYPE and not numbered) or bounds:
        _check_type(given, result, out)
        return [written_as if given.callee != "ttnn.where" else replace(written_as, shape=None)]
    given.require(
        out.layout == result.layout,
        f"writes to an output tensor in {result.layout}",
        "Output format (tile/row-major) must match input when preallocated",
    )
    floats = (given.callee in _OF_ANY_FLOAT or clamps) and {out.dtype, result.dtype} <= REALS
    given.require(
        floats or out.dtype == result.dtype,
        f"gives {result.dtype}, and writes to no output tensor of {out.dtype}",
        "Mismatched output dtype",
    )
    moved = given.callee == "ttnn.to_memory_config" and given["memory_config"] != out.memory
    given.require(not moved, "writes to the memory of the output tensor", "Mismatched output memory config")
    return [replace(written_as, shape=None)]


def _check_type(given: Given, result: Result, out: Form) -> None:
    """Refuses output tensors of functions that write any element type, but for some of them."""
    asked = given["dtype"] in (None, out.dtype)
    given.require(asked, "takes an output tensor of the dtype asked for", "output tensor provided dtype should match")
    if given.callee == "ttnn.where" and result.layout == TILE:
        given.require(
            out.layout == TILE, "writes to an output tensor in TILE layout", "output tensor to be in Tile layout"
        )
    whole = given.callee == "ttnn.divide" and all(f.dtype == I32 for f in given.tensors()[:2])
    given.require(
        not whole or out.dtype == result.dtype,
        f"of integers gives {result.dtype}",
        "For integer division, supported output dtype is FLOAT32",
    )
