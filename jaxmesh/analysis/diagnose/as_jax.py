"""Prints operations of StableHLO as a JAX program of a few lines."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxmesh.frontends.stablehlo.shardings import Sharding, as_spec

_NAMES = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "maximum": "max", "minimum": "min",
    "power": "pow", "remainder": "rem", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "atan2": "atan2", "tanh": "tanh", "exponential": "exp", "exponential_minus_one": "expm1", "log": "log",
    "log_plus_one": "log1p", "logistic": "logistic", "negate": "neg", "abs": "abs", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "cbrt": "cbrt", "sine": "sin", "cosine": "cos", "tan": "tan", "floor": "floor", "ceil": "ceil", "sign": "sign",
    "not": "bitwise_not", "is_finite": "is_finite", "select": "select", "clamp": "clamp",
}  # fmt: skip
_REDUCTIONS = {"add": "sum", "maximum": "max", "minimum": "min", "multiply": "prod", "and": "all", "or": "any"}
_TYPE = re.compile(r"tensor<((?:\d+x)*)(\w+)>")
_DTYPES = {"i1": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}
_CONV = re.compile(r"\[([^\]]*)\]x\[([^\]]*)\]->\[([^\]]*)\]")


def shape_and_dtype(written: Any) -> tuple[tuple[int, ...], str]:
    """Returns the shape and JAX's dtype of a tensor type.

    >>> shape_and_dtype("tensor<4x8xf32>")
    ((4, 8), 'float32')
    """
    found = _TYPE.fullmatch(str(written))
    if found is None:
        raise KeyError(str(written))
    dtype = _DTYPES.get(found[2]) or found[2].replace("ui", "uint").replace(
        "i", "int" if found[2][0] == "i" else "i", 1
    )
    return tuple(int(n) for n in found[1].split("x") if n), dtype


def _numbers(op: Any, name: str) -> list[int]:
    return [int(n) for n in op.attributes[name]] if name in op.attributes else []


def _slice(op: Any, x: str) -> str:
    rows = zip(*(_numbers(op, k) for k in ("start_indices", "limit_indices", "strides")), strict=True)
    return f"{x}[{', '.join(f'{a}:{b}' + (f':{s}' if s > 1 else '') for a, b, s in rows)}]"


def _dot(op: Any, x: str, y: str) -> str:
    text = str(op.attributes["dot_dimension_numbers"])

    def dims(name: str) -> tuple[int, ...]:
        found = re.search(rf"{name} = \[([^\]]*)\]", text)
        return tuple(int(n) for n in found[1].split(",")) if found else ()

    numbers = tuple((dims(f"lhs_{k}_dimensions"), dims(f"rhs_{k}_dimensions")) for k in ("contracting", "batching"))
    return f"lax.dot_general({x}, {y}, {numbers})"


def _reduce(op: Any, x: str, start: str) -> str:
    inner, *rest = [o.operation for o in op.regions[0].blocks[0].operations]
    if len(rest) != 1:
        raise KeyError("reduce")
    name = _REDUCTIONS[inner.name.partition(".")[2]]
    return f"jnp.{name}({x}, {tuple(_numbers(op, 'dimensions'))})"


def _convolution(op: Any, x: str, k: str) -> str:
    found = _CONV.search(str(op.attributes["dimension_numbers"]))
    if found is None or any(n in op.attributes for n in ("window_reversal",)):
        raise KeyError("convolution")
    marks = [[m.strip() for m in part.split(",")] for part in found.groups()]

    def spec(names: Sequence[str], first: str, second: str) -> tuple[int, ...]:
        spatial = sorted((n for n in names if n.isdigit()), key=int)
        return tuple(names.index(n) for n in (first, second, *spatial))

    numbers = spec(marks[0], "b", "f"), spec(marks[1], "o", "i"), spec(marks[2], "b", "f")
    rank = len(marks[0]) - 2
    strides = _numbers(op, "window_strides") or [1] * rank
    padding = _numbers(op, "padding") or [0] * 2 * rank
    pairs = [(padding[2 * i], padding[2 * i + 1]) for i in range(rank)]
    more = {"lhs_dilation": "lhs_dilation", "rhs_dilation": "rhs_dilation"}
    options = "".join(f", {k}={_numbers(op, a)}" for k, a in more.items() if _numbers(op, a))
    groups = int(op.attributes["feature_group_count"])
    options += f", feature_group_count={groups}" if groups > 1 else ""
    return (
        f"lax.conv_general_dilated({x}, {k}, {strides}, {pairs}{options}, "
        f"dimension_numbers=lax.ConvDimensionNumbers({', '.join(map(str, numbers))}))"
    )


def _constant(op: Any) -> str:
    shape, dtype = shape_and_dtype(op.results[0].type)
    value = op.attributes["value"]
    if not value.is_splat:
        raise KeyError("constant")
    number = value.get_splat_value().value
    text = f"float('{number}')" if isinstance(number, float) and not math.isfinite(number) else repr(number)
    return f"jnp.full({shape}, {text}, {dtype!r})"


def _pad(op: Any, x: str, value: str) -> str:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    rows = zip(*(_numbers(op, name) for name in names), strict=True)
    return f"lax.pad({x}, {value}, {list(rows)})"


def _reshape(op: Any, x: str) -> str:
    return f"{x}.reshape({shape_and_dtype(op.results[0].type)[0]})"


def _transpose(op: Any, x: str) -> str:
    return f"lax.transpose({x}, {tuple(_numbers(op, 'permutation'))})"


def _broadcast(op: Any, x: str) -> str:
    shape, dims = shape_and_dtype(op.results[0].type)[0], tuple(_numbers(op, "broadcast_dimensions"))
    return f"lax.broadcast_in_dim({x}, {shape}, {dims})"


def _convert(op: Any, x: str) -> str:
    return f"{x}.astype({shape_and_dtype(op.results[0].type)[1]!r})"


def _reverse(op: Any, x: str) -> str:
    return f"lax.rev({x}, {tuple(_numbers(op, 'dimensions'))})"


def _concatenate(op: Any, *xs: str) -> str:
    return f"jnp.concatenate([{', '.join(xs)}], {int(op.attributes['dimension'])})"


def _iota(op: Any) -> str:
    shape, dtype = shape_and_dtype(op.results[0].type)
    return f"lax.broadcasted_iota({dtype!r}, {shape}, {int(op.attributes['iota_dimension'])})"


def _compare(op: Any, x: str, y: str) -> str:
    direction = re.findall(r"[A-Z]{2}", str(op.attributes["comparison_direction"]))[-1]
    return f"lax.{direction.lower()}({x}, {y})"


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
        types = [shape_and_dtype(v.type) for v in inputs]
    except KeyError:
        return None
    places = [f"NamedSharding(mesh, {_spec(s)})" for s in shardings]
    rows = [f"    jax.ShapeDtypeStruct({s}, {d!r}, sharding={p})," for (s, d), p in zip(types, places, strict=True)]
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
