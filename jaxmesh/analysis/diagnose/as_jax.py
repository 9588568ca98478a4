"""Prints operations of StableHLO as a JAX program of a few lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.mlir.attributes import Types
from jaxmesh.frontends.stablehlo.call import enum_of
from jaxmesh.frontends.stablehlo.reductions import dot_dims, kind_of
from jaxmesh.frontends.stablehlo.shardings import Sharding, as_spec
from jaxmesh.frontends.stablehlo.windows import convolution_dims

_NAMES = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "maximum": "max", "minimum": "min",
    "power": "pow", "remainder": "rem", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "atan2": "atan2", "tanh": "tanh", "exponential": "exp", "exponential_minus_one": "expm1", "log": "log",
    "log_plus_one": "log1p", "logistic": "logistic", "negate": "neg", "abs": "abs", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "cbrt": "cbrt", "sine": "sin", "cosine": "cos", "tan": "tan", "floor": "floor", "ceil": "ceil", "sign": "sign",
    "not": "bitwise_not", "is_finite": "is_finite", "select": "select", "clamp": "clamp",
}  # fmt: skip
_TRUTHS = {"and": "all", "or": "any"}


def _type(value: Any) -> jax.ShapeDtypeStruct:
    return Types(lambda _: None, wide=True)(value.type)


def _numbers(op: Any, name: str) -> list[int]:
    return [int(n) for n in op.attributes[name]] if name in op.attributes else []


def _slice(op: Any, x: str) -> str:
    rows = zip(*(_numbers(op, k) for k in ("start_indices", "limit_indices", "strides")), strict=True)
    return f"{x}[{', '.join(f'{a}:{b}' + (f':{s}' if s > 1 else '') for a, b, s in rows)}]"


def _dot(op: Any, x: str, y: str) -> str:
    return f"lax.dot_general({x}, {y}, {dot_dims(op)})"


def _reduce(op: Any, x: str, start: str) -> str:
    kind = kind_of(op)
    if kind is None or (kind in _TRUTHS and _type(op.results[0]).dtype != bool):
        raise KeyError("reduce")
    return f"jnp.{_TRUTHS.get(kind, kind)}({x}, {tuple(_numbers(op, 'dimensions'))})"


def _convolution(op: Any, x: str, k: str) -> str:
    if any(_numbers(op, "window_reversal")):
        raise KeyError("convolution")
    numbers = convolution_dims(op)
    rank = len(numbers.lhs_spec) - 2
    strides = _numbers(op, "window_strides") or [1] * rank
    padding = _numbers(op, "padding") or [0] * 2 * rank
    pairs = [(padding[2 * i], padding[2 * i + 1]) for i in range(rank)]
    dilations = ("lhs_dilation", "rhs_dilation")
    options = "".join(f", {name}={_numbers(op, name)}" for name in dilations if _numbers(op, name))
    counts = {name: int(op.attributes[name]) for name in ("feature_group_count", "batch_group_count")}
    options += "".join(f", {name}={n}" for name, n in counts.items() if n > 1)
    return (
        f"lax.conv_general_dilated({x}, {k}, {strides}, {pairs}{options}, "
        f"dimension_numbers=lax.ConvDimensionNumbers({', '.join(map(str, numbers))}))"
    )


def _constant(op: Any) -> str:
    kind = _type(op.results[0])
    value = op.attributes["value"]
    if not value.is_splat:
        raise KeyError("constant")
    number = value.get_splat_value().value
    text = f"float('{number}')" if isinstance(number, float) and not math.isfinite(number) else repr(number)
    return f"jnp.full({kind.shape}, {text}, {kind.dtype.name!r})"


def _pad(op: Any, x: str, value: str) -> str:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    rows = zip(*(_numbers(op, name) for name in names), strict=True)
    return f"lax.pad({x}, {value}, {list(rows)})"


def _reshape(op: Any, x: str) -> str:
    return f"{x}.reshape({_type(op.results[0]).shape})"


def _transpose(op: Any, x: str) -> str:
    return f"lax.transpose({x}, {tuple(_numbers(op, 'permutation'))})"


def _broadcast(op: Any, x: str) -> str:
    dims = tuple(_numbers(op, "broadcast_dimensions"))
    return f"lax.broadcast_in_dim({x}, {_type(op.results[0]).shape}, {dims})"


def _convert(op: Any, x: str) -> str:
    return f"{x}.astype({_type(op.results[0]).dtype.name!r})"


def _reverse(op: Any, x: str) -> str:
    return f"lax.rev({x}, {tuple(_numbers(op, 'dimensions'))})"


def _concatenate(op: Any, *xs: str) -> str:
    return f"jnp.concatenate([{', '.join(xs)}], {int(op.attributes['dimension'])})"


def _iota(op: Any) -> str:
    kind = _type(op.results[0])
    return f"lax.broadcasted_iota({kind.dtype.name!r}, {kind.shape}, {int(op.attributes['iota_dimension'])})"


def _compare(op: Any, x: str, y: str) -> str:
    return f"lax.{enum_of(op, 'comparison_direction').lower()}({x}, {y})"


_PRINTERS: Mapping[str, Callable[..., str]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "convert": _convert,
    "reverse": _reverse,
    "concatenate": _concatenate,
    "iota": _iota,
    "compare": _compare,
    "slice": _slice,
    "dot_general": _dot,
    "reduce": _reduce,
    "convolution": _convolution,
    "constant": _constant,
    "pad": _pad,
}


def as_jax(
    ops: Sequence[Any], inputs: Sequence[Any], output: Any, shardings: Sequence[Sharding], result: Sharding | None,
    axes: Mapping[str, int],
) -> str | None:  # fmt: skip
    """Returns operations as a JAX program; None if an operation lacks a short form.

    Args:
      ops: the operations, in order.
      inputs: the values that become arguments.
      output: the value that it returns.
      shardings: the shardings of the arguments.
      result: the sharding of the result; None to leave it open.
      axes: the sizes of the mesh axes, by name.
    """
    names = {v: f"x{i}" for i, v in enumerate(inputs)}
    lines: list[str] = []
    try:
        for op in ops:
            kind, operands = op.name.partition(".")[2], [names[v] for v in op.operands]
            plain = f"lax.{_NAMES[kind]}({', '.join(operands)})" if kind in _NAMES else ""
            text = plain or _PRINTERS[kind](op, *operands)
            names[op.results[0]] = f"v{len(lines)}"
            lines.append(f"    v{len(lines)} = {text}")
        types = [_type(v) for v in inputs]
    except (KeyError, UnsupportedError):
        return None
    places = [f"NamedSharding(mesh, {_spec(s)})" for s in shardings]
    kinds = [f"{t.shape}, {t.dtype.name!r}" for t in types]
    rows = [f"    jax.ShapeDtypeStruct({k}, sharding={p})," for k, p in zip(kinds, places, strict=True)]
    out = "" if result is None else f", out_shardings=NamedSharding(mesh, {_spec(result)})"
    return "\n".join([
        "import jax",
        "import jax.numpy as jnp",
        "from jax import lax",
        "from jax.sharding import AxisType, NamedSharding, PartitionSpec as P",
        "",
        # The axes of newer JAX are explicit by default, which refuses what the compiler is asked to partition.
        f"mesh = jax.make_mesh({tuple(axes.values())}, {tuple(axes)}, axis_types=(AxisType.Auto,) * {len(axes)})",
        "",
        "",
        f"def f({', '.join(names[v] for v in inputs)}):",
        *lines,
        f"    return {names[output]}",
        "",
        "",
        "args = [",
        *rows,
        "]",
        f'jax.jit(f{out}).lower(*args).compile(compiler_options={{"export_path": "export"}})',
    ])  # fmt: skip


def _spec(sharding: Sharding) -> str:
    return f"P({', '.join(map(repr, tuple(as_spec(sharding))))})"
