"""Custom calls with a known meaning: the boundary between full values and shards, and calls that represent ops of
TTIR."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxmesh.dialects import ttir
from jaxmesh.dialects.definitions import DEFINITIONS, has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.perform import evaluate
from jaxmesh.dialects.ttir.mesh_shard import full_to_shard, shard_to_full
from jaxmesh.errors import MissingRuleError, UnsupportedError
from jaxmesh.frontends.jax.retype import spread, varying
from jaxmesh.frontends.mlir.attributes import nested
from jaxmesh.frontends.stablehlo.call import ImportContext, Whole, keep_op
from jaxmesh.frontends.stablehlo.elementwise import CHLO
from jaxmesh.frontends.stablehlo.gspmd import COMPOSITE, FRONTEND, OWN_PART, target_of
from jaxmesh.frontends.stablehlo.reductions import split_top_k
from jaxmesh.frontends.stablehlo.rules import split_op
from jaxmesh.frontends.stablehlo.shardings import Sharding, as_spec, axes_of, local_shape, read, replicated, show
from jaxmesh.frontends.stablehlo.values import Sharded, own_slice
from jaxmesh.jaxprs.stablehlo import EQUATION
from jaxmesh.jaxprs.untyped import lax


def _custom_call(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    name = target_of(op)
    known = _TARGETS.get(name)
    if known is None and name.startswith("tt.") and f"ttir.{_op_named(name)}" in DEFINITIONS:
        known = _opaque_call if has_trait(f"ttir.{_op_named(name)}", Trait.OPAQUE) else _op_call(_op_named(name))
    if known is None:
        raise MissingRuleError(
            f"the meaning of the custom call @{name} is not known. Write it with StableHLO's ops, or add "
            "its meaning in jaxmesh/frontends/stablehlo/custom_calls.py."
        )
    return known(program, op)


def _to_shards(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Splits a full value by the op's sharding; the result has its local type."""
    x = program.settle(program.env[op.operands[0]])
    _check_local(op, program, x.sharding, op.operands[0], op.results[0])
    return [Sharded(spread(x.array, axes_of(x.sharding)), replicated(x.array.ndim))]


def _to_full(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Joins local values into a full value with the op's sharding."""
    (target,) = program.result_shardings(op)
    x = program.settle(program.env[op.operands[0]])
    _check_local(op, program, target, op.results[0], op.operands[0])
    array = program.reshard(x, replicated(x.array.ndim), f"for {op.name}")
    return [Sharded(prove_equal(program, array, target, "a value that leaves the shards"), target)]


def prove_equal(program: ImportContext, x: jax.Array, target: Sharding, what: str) -> jax.Array:
    """Returns a shard that is replicated along all axes that do not split it; assumes this if types do not prove it.

    Inside a region for one device, as where a device reads its mesh coordinate, the shard keeps its value along the
    axes of that region.
    """
    several = [a for a in program.sizes if a in varying(x) - set(axes_of(target)) and program.sizes[a] > 1]
    unproven = [a for a in several if a not in program.manual]
    if not unproven:
        return spread(x, axes_of(target))
    program.decisions.assume(f"{what} is taken to be the same over mesh axis {', '.join(map(repr, unproven))}")
    kept_axes = tuple(a for a in several if a in program.manual)
    if kept_axes:
        # A leading dim stores the value of each coordinate along the axes.
        x, target = lax.expand_dims(x, [0]), (kept_axes, *target)
    spec = as_spec(target)
    proven = full_to_shard(shard_to_full(x, spec, assume_replicated=True), spec)
    return lax.squeeze(proven, [0]) if kept_axes else proven


def _check_local(op: ir.Operation, program: ImportContext, sharding: Sharding, full: ir.Value, local: ir.Value) -> None:
    expected, local_type_shape = local_shape(full.type.shape, sharding, program.sizes), tuple(local.type.shape)
    if expected != local_type_shape:
        raise UnsupportedError(
            f"@{target_of(op)} declares a shard of {list(full.type.shape)} as {list(local_type_shape)}, but its "
            f"sharding {as_spec(sharding)} yields {list(expected)}; correct the type or the sharding."
        )


def _same(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    return [program.env[v] for v in op.operands]


def _unary(fun: Callable[..., jax.Array]) -> Whole:
    def known(program: ImportContext, op: ir.Operation) -> list[Sharded]:
        x = program.settle(program.env[op.operands[0]])
        return [Sharded(fun(x.array), x.sharding)]

    return known


def _own_part(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Imports an all_slice inside a region for one device."""
    target = read(sdy.TensorShardingAttr(nested(op, COMPOSITE)["out_sharding"]))
    if not set(axes_of(target)) <= program.manual:
        raise UnsupportedError(f"@{target_of(op)} to {show(target)}, outside of a region for one device of those axes.")
    x = program.settle(program.env[op.operands[0]]).array
    for dim, axes in reversed([*enumerate(target)]):
        for axis in axes:
            x = own_slice(x, axis, dim, program.sizes)
    return [Sharded(x, replicated(x.ndim))]


# --- ops of TTIR -----------------------------------------------------------------------------------------------------


Structs = Sequence[jax.ShapeDtypeStruct]
"""The types of results."""


def bind_op(
    program: ImportContext, name: str, operands: list[jax.Array], attributes: Mapping[str, object], types: Structs
) -> list[jax.Array]:
    """Performs an op of TTIR on arrays; its results have the given types."""
    definition = DEFINITIONS[f"ttir.{name}"]

    def meaning(*values: jax.Array) -> list[jax.Array]:
        return evaluate(definition, values, attributes, types, program.sizes)

    return keep_op(program.keeps_ops, name, operands, attributes, meaning)


Perform = Callable[[list[jax.Array], Structs], list[jax.Array]]
"""A function of shards and the types of the results' shards."""


def _on_shards(program: ImportContext, op: ir.Operation, perform: Perform) -> list[Sharded]:
    """Performs an op on shards as its rule splits it."""
    xs, wanted = [program.env[v] for v in op.operands], program.result_shardings(op)
    shapes, result_types = [t.shape for t in program.types_of(op.operands)], program.types_of(op.results)
    splitting = split_op(op, (shapes, [t.shape for t in result_types]), [x.sharding for x in xs], wanted, program.sizes)
    why = f"for {target_of(op)}"
    arrays = [program.reshard(x, s, why) for x, s in zip(xs, splitting.operands, strict=True)]
    expected = zip(result_types, splitting.results, strict=True)
    types = [jax.ShapeDtypeStruct(local_shape(t.shape, s, program.sizes), t.dtype) for t, s in expected]
    outs = [Sharded(y, s) for y, s in zip(perform(arrays, types), splitting.results, strict=True)]
    return [Sharded(program.reshard(y, w, f"of {why}"), w) for y, w in zip(outs, wanted, strict=True)]


def _op_call(name: str, where: str = FRONTEND, convert: Callable[[jax.Array], jax.Array] = lambda x: x) -> Whole:
    """Returns the import of a call that represents an op of TTIR, whose attributes are in an attribute of the call.

    `convert` converts all operands but the first.
    """

    def known(program: ImportContext, op: ir.Operation) -> list[Sharded]:
        attributes, present = _read_attributes(program, op, name, where)
        if unread := sorted(n for n, here in present.items() if here and n != "attention_mask"):
            raise UnsupportedError(f"@{target_of(op)} has the operand {', '.join(unread)}, which is not supported.")

        def perform(arrays: list[jax.Array], types: Structs) -> list[jax.Array]:
            return bind_op(program, name, [*arrays[:1], *map(convert, arrays[1:])], attributes, types)

        return _on_shards(program, op, perform)

    return known


def _read_attributes(
    program: ImportContext, op: ir.Operation, name: str, where: str
) -> tuple[dict[str, Any], dict[str, bool]]:
    """Returns the attributes of a call as its op defines them, and the presence of optional operands, `has_x`."""
    definition = DEFINITIONS[f"ttir.{name}"]
    values = {k: program.read(v) for k, v in nested(op, where).items()}
    present = {k.removeprefix("has_"): _truth(v) for k, v in values.items() if k.startswith("has_")}
    written, known = {k: v for k, v in values.items() if not k.startswith(("has_", "xla."))}, definition.by_name
    if unknown := sorted(written.keys() - known.keys()):
        raise UnsupportedError(f"@{target_of(op)} has {', '.join(unknown)}; {definition.listed_attributes}.")
    return {k: _PARSERS[known[k].kind](v) for k, v in written.items()}, present


def _truth(value: object) -> bool:
    text = str(value)
    if text.lower() not in ("true", "false"):
        raise UnsupportedError(f"{text[:60]!r} is neither true nor false.")
    return text.lower() == "true"


def _ints(value: jax.Array) -> tuple[int, ...]:
    return tuple(int(n) for n in np.atleast_1d(value))


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "bool": _truth, "int": int, "ints": _ints, "float": float, "str": str, "enum": str,
}  # fmt: skip


def _op_named(target: str) -> str:
    """Returns the name of the TTIR op that a call of tt-xla represents."""
    return _RENAMED.get(target, target.removeprefix("tt."))


_RENAMED = {"tt.paged_flash_mla_decode": "paged_flash_multi_latent_attention_decode"}


def _opaque_call(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Imports a call that represents an op of TTIR without a meaning.

    Its attributes are strings; `has_x` is true if the optional operand `x` is present. Calls do not pass a destination.
    """
    name = _op_named(target_of(op))
    definition = DEFINITIONS[f"ttir.{name}"]
    names = definition.operand_names
    attributes, flags = _read_attributes(program, op, name, FRONTEND)
    xs = [program.env[v] for v in op.operands]
    arrays = iter([program.reshard(x, replicated(len(x.sharding)), f"for {target_of(op)}") for x in xs])
    free = len(xs) - sum(n[-1] != "?" and n != "output" for n in names)
    groups: list[jax.Array | None] = []
    for operand in names:
        optional = operand.endswith("?")
        present = not optional or flags.get(operand.rstrip("?"), free > 0)
        free -= optional and present
        if operand == "output":
            (result_type,) = program.types_of(op.results)
            groups.append(lax.full(result_type.shape, 0, result_type.dtype))
        else:
            groups.append(next(arrays, None) if present else None)
    if definition.groups is not None:
        attributes["operandSegmentSizes"] = tuple(int(x is not None) for x in groups)
    results = bind_op(program, name, [x for x in groups if x is not None], attributes, program.types_of(op.results))
    return [Sharded(y, replicated(y.ndim)) for y in results]


def _attention(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Imports attention of four dims, or of three without heads; a mask is broadcast to four."""
    xs = [program.settle(program.env[v]).array for v in op.operands]
    written = {k: program.read(v) for k, v in nested(op, COMPOSITE).items()}
    attributes = {k: written[k] for k in ("is_causal", "scale") if k in written}
    flat = xs[0].ndim == _FULL_RANK - 1
    operands = [lax.expand_dims(x, (1,)) if flat else x for x in xs[:3]]
    masked = written.get("is_causal", True) is False and len(xs) > len(operands)
    if masked:
        mask = lax.expand_dims(xs[3], (1,)) if flat and xs[3].ndim == _FULL_RANK - 1 else xs[3]
        operands.append(lax.expand_dims(mask, tuple(range(_FULL_RANK - mask.ndim))))
    (wanted,) = program.types_of(op.results)
    shape = (*wanted.shape[:1], 1, *wanted.shape[1:]) if flat else wanted.shape
    result_type = jax.ShapeDtypeStruct(shape, wanted.dtype)
    attributes["operandSegmentSizes"] = (1, 1, 1, int(masked), 0)
    (result,) = bind_op(program, "scaled_dot_product_attention", operands, attributes, [result_type])
    return [Sharded(lax.squeeze(result, (1,)) if flat else result, replicated(len(wanted.shape)))]


_FULL_RANK = 4
"""The number of dims of an attention operand: batch, heads, sequence, head size."""


def stands_for_op(composite: ir.Operation) -> bool:
    """Returns True for a composite that upstream treats as an op of TTIR, if it has the attributes of the op."""
    name, written = composite.attributes["name"].value, nested(composite, "composite_attributes")
    return _NEEDED.get(name, "") in ("", *written) and name in _NEEDED


_NEEDED = {
    "tenstorrent.gelu": "", "tenstorrent.gelu_tanh": "", "tenstorrent.scaled_dot_product_attention": "",
    "tenstorrent.gather": "dim", "tenstorrent.gather_dim": "dim", "tenstorrent.layer_norm": "normalized_shape",
    "tenstorrent.topk": "k", "tenstorrent.topk_values": "k", "tenstorrent.topk_indices": "k",
}  # fmt: skip
"""Composites that represent an op, each with its required attribute."""


def _as_index(x: jax.Array) -> jax.Array:
    return x if x.dtype.name in ("uint32", "uint16") else lax.convert_element_type(x, np.uint32)


_GATHER = _op_call("gather", COMPOSITE, convert=_as_index)


def _gelu(*, approximate: bool) -> Whole:
    """Returns the import of a gelu, which TTIR prints in one form and the call computes in its exact or tanh form."""

    def known(program: ImportContext, op: ir.Operation) -> list[Sharded]:
        x = program.settle(program.env[op.operands[0]])

        def meaning(array: jax.Array) -> jax.Array:
            return jax.nn.gelu(array, approximate=approximate)

        return [Sharded(y, x.sharding) for y in keep_op(program.keeps_ops, "gelu", [x.array], {}, meaning)]

    return known


def _top_k(where: str = COMPOSITE, kept: tuple[int, ...] = (0, 1)) -> Whole:
    """Returns the import of a call that represents TTIR's `topk`, and returns the results of the indices `kept`."""

    def known(program: ImportContext, op: ir.Operation) -> list[Sharded]:
        defaults = {a.name: a.default for a in ttir.OPS["topk"].attributes if not a.required}
        attributes = defaults | _read_attributes(program, op, "topk", where)[0]
        (x,), results = program.types_of(op.operands), program.types_of(op.results)
        index_dtype = np.dtype(np.int32) if kept == (0,) else results[-1].dtype

        def pick(array: jax.Array, k: int, dim: int) -> Sequence[jax.Array]:
            shape = (*array.shape[:dim], k, *array.shape[dim + 1 :])
            types = [jax.ShapeDtypeStruct(shape, dtype) for dtype in (x.dtype, index_dtype)]
            return bind_op(program, "topk", [array], attributes | {"k": k}, types)

        return split_top_k(program, op, attributes["k"], attributes["dim"], pick, kept)

    return known


def _equation(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Imports an equation that JAX lowers without an op: on whole matrices, distributed over the devices as a batch."""
    assert program.equation is not None
    number = nested(op, "mhlo.backend_config")["index"].value
    perform = functools.partial(program.equation, number)
    if len(op.results):
        return _on_shards(program, op, lambda arrays, _: perform(arrays))
    return perform([program.env[v] for v in op.operands])


_OF_MHLO = (
    "mhlo.erf", "mhlo.asin", "mhlo.acos", "mhlo.asinh", "mhlo.acosh", "mhlo.atanh", "mhlo.sinh", "mhlo.cosh",
    "mhlo.tan",
)  # fmt: skip
"""Functions that XLA writes as calls."""
_TARGETS: dict[str, Whole] = {
    EQUATION: _equation,
    "tt.sharding_constraint": _same,
    OWN_PART: _own_part,
    "tenstorrent.gather": _GATHER,
    "tenstorrent.gather_dim": _GATHER,
    "tenstorrent.gelu": _gelu(approximate=False),
    "tenstorrent.gelu_tanh": _gelu(approximate=True),
    "tenstorrent.scaled_dot_product_attention": _attention,
    "tenstorrent.rms_norm": _op_call("rms_norm", COMPOSITE),
    "tenstorrent.distributed_rms_norm": _op_call("distributed_rms_norm", COMPOSITE),
    "tenstorrent.layer_norm": _op_call("layer_norm", COMPOSITE),
    "tenstorrent.topk": _top_k(),
    "tenstorrent.topk_values": _top_k(kept=(0,)),
    "tenstorrent.topk_indices": _top_k(kept=(1,)),
    "mhlo.topk": _top_k("mhlo.attributes"),
    "SPMDFullToShardShape": _to_shards,
    "SPMDShardToFullShape": _to_full,
    "Sharding": _same,
    "tt.mark_argument": _same,
    "tt.weight_dtype_override": _same,
    **{name: _unary(CHLO[name.removeprefix("mhlo.")]) for name in _OF_MHLO},
}
OPS: dict[str, Whole] = {"stablehlo.custom_call": _custom_call, "mhlo.copy": _same}
