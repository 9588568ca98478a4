"""The arithmetic of the ops of a flat TTNN program on one device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxmesh.dialects.definitions import has_trait, ttnn_definition
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program, Type, Value


@dataclass(frozen=True, slots=True)
class Work:
    """The operations of one op, by the unit of the device that performs them.

    Attributes:
      products: multiplications and additions of matrix products, two for each pair of elements.
      reduced: the elements of reductions such as sums and maxima.
      elementwise: all other operations, one for each element.
    """

    products: int = 0
    reduced: int = 0
    elementwise: int = 0

    @property
    def flops(self) -> int:
        """The operations of all three units."""
        return self.products + self.reduced + self.elementwise


def work(op: Op, program: Program) -> Work:
    """Returns the arithmetic of an op.

    An op whose definition states no `work`, and without a rule in `_RULES`, costs one operation per element of its
    result, and nothing if it only moves data.
    """
    definition = ttnn_definition(op.name)
    if definition is not None and "reduce_type" in definition.by_name:
        return _summed(op, program)
    rule = _RULES.get(op.name.removeprefix("ttnn."))
    if rule is not None:
        return rule(op, program)
    if definition is not None and definition.work is not None:
        n, (reduced, elementwise) = size(program, op.used[0]), definition.work
        return Work(reduced=n * reduced, elementwise=n * elementwise)
    idle = any(has_trait(op.name, trait) for trait in (Trait.MOVES, Trait.CREATES, Trait.VIEW))
    return Work() if idle else Work(elementwise=max((size(program, v) for v in op.results), default=0))


def size(program: Program, value: Value) -> int:
    """Returns the number of elements of a value, on one device."""
    return math.prod(program.types[value].shape)


def _type(op: Op, program: Program, number: int) -> Type:
    value = op.operands[number]
    assert value is not None
    return program.types[value]


def _matmul(op: Op, program: Program) -> Work:
    """Counts two operations for each element of the result and of the contracted dim, and one for a bias."""
    a, out = _type(op, program, 0).shape, size(program, op.results[0])
    transposed = bool(op.attributes.get("transpose_a")) and len(a) > 1
    contracted = a[len(a) - 2 if transposed else len(a) - 1]
    return Work(products=2 * out * contracted, elementwise=out if len(op.used) > 2 else 0)


def _conv(op: Op, program: Program) -> Work:
    """Counts the products of a window with each position of the result (of the input, for a transposed convolution)."""
    transposed = op.name == "ttnn.conv_transpose2d"
    places = size(program, op.used[0] if transposed else op.results[0])
    channels = op.attributes["out_channels" if transposed else "in_channels"] // op.attributes.get("groups", 1)
    bias = size(program, op.results[0]) if len(op.used) > 2 else 0
    return Work(products=2 * places * channels * math.prod(op.attributes["kernel_size"]), elementwise=bias)


def _attention(op: Op, program: Program) -> Work:
    """Counts two products for each query and each key that the query attends to, and the softmax over them."""
    queries, keys = _type(op, program, 0).shape, _type(op, program, 1).shape
    query_count, key_count = queries[-2], keys[-2]
    causal = op.attributes.get("is_causal", True)
    seen = sum(min(i + 1, key_count) for i in range(query_count)) if causal else query_count * key_count
    pairs = math.prod(queries[:-2]) * seen
    return Work(4 * pairs * queries[-1], 2 * pairs, 3 * pairs)


def _norm(op: Op, program: Program) -> Work:
    """Counts squares, their sum and the scaling, and one operation each for weight and bias; a layer norm also
    subtracts the mean."""
    n, centred = size(program, op.used[0]), op.name == "ttnn.layer_norm"
    per_element = 2 + centred + (len(op.used) - 1)
    return Work(reduced=n * (1 + centred), elementwise=n * per_element)


def _pool(op: Op, program: Program) -> Work:
    return Work(reduced=size(program, op.results[0]) * math.prod(op.attributes["kernel_size"]))


def _summed(op: Op, program: Program) -> Work:
    """Counts the additions of a collective: each device adds up one piece of the result."""
    (count,) = [n for i, n in enumerate(program.mesh.values()) if i == op.attributes["cluster_axis"]]
    return Work(elementwise=(count - 1) * size(program, op.used[0]) // count)


def _scattered(op: Op, program: Program) -> Work:
    """Counts one operation for each update, the third operand, that is combined with the element it replaces."""
    replaces = op.name == "ttnn.scatter" and op.attributes.get("scatter_reduce_type", "invalid") == "invalid"
    return Work(elementwise=0 if replaces else size(program, op.used[2]))


_RULES: Mapping[str, Callable[[Op, Program], Work]] = {
    "matmul": _matmul, "linear": _matmul, "conv2d": _conv, "conv_transpose2d": _conv,
    "scaled_dot_product_attention": _attention, "layer_norm": _norm, "rms_norm": _norm,
    "max_pool2d": _pool, "avg_pool2d": _pool, "scatter": _scattered, "embedding_bw": _scattered,
}  # fmt: skip
"""The rules of ops, by name without the dialect, whose work is not a number per element that the definition states."""
