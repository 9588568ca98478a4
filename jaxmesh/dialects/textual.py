"""Operations of both dialects that are read, lowered and printed, and that `jaxmesh.ttnn` cannot call.

Most lack a meaning here: passes keep the types that the text gives them, and a program that has one cannot be
executed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import jax

from jaxmesh.dialects import ttir, ttnn
from jaxmesh.dialects.op import Call, OpDef, Trait
from jaxmesh.dialects.table import ROWS, TableRow, read_row
from jaxmesh.dialects.ttir import elementwise, images as ttir_images, shapes
from jaxmesh.dialects.ttir.helpers import jnp, lax, vary_together
from jaxmesh.dialects.ttnn import images, memory
from jaxmesh.dialects.ttnn.forms import ANY, Forms, Gives, Takes, refused
from jaxmesh.dialects.ttnn.op import TtnnOp, read_call
from jaxmesh.errors import MissingRuleError
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.walk import all_eqns

OPS: dict[str, OpDef] = {}
"""By full name."""

opaque_p = compat.unlowered_primitive("opaque_op")
opaque_p.multiple_results = True


@opaque_p.def_abstract_eval
def _opaque_types(*operands: compat.Aval, name: str, results: Sequence[jax.ShapeDtypeStruct]) -> list[compat.Aval]:
    first = operands[0]
    return [compat.retype(first, r.shape, compat.varying_axes(first)).update(dtype=r.dtype) for r in results]


def check_executable(jaxpr: compat.Jaxpr) -> None:
    """Raises an error if a program has operations without a meaning.

    Raises:
      MissingRuleError: it has; the message names them.
    """
    names = dict.fromkeys(e.params["name"] for e in all_eqns(jaxpr) if e.primitive is opaque_p)
    if names:
        listed = ", ".join(names)
        raise MissingRuleError(
            f"{listed} cannot be executed: no meaning of it is known here; it is read, lowered and printed as MLIR. "
            "Run the text with tt-mlir, or write what it does with other operations."
        )


def _opaque(name: str, call: Call) -> Sequence[jax.Array]:
    operands = call.operands or (jnp.zeros(()),)
    return opaque_p.bind(*vary_together(*operands), name=name, results=call.results)


# --- the table -------------------------------------------------------------------------------------------------------


def _without_meaning(name: str, row: TableRow) -> OpDef:
    traits = frozenset({Trait.TEXTUAL, Trait.BY_ELEMENT_TYPE if row.by_element_type else Trait.OPAQUE})
    definition = replace(row.definition, meaning=partial(_opaque, name), casts=True, traits=traits)
    if definition.dialect != "ttnn":
        return definition
    # Operands and results are of any type, in tiles but for some in rows.
    takes = tuple(Takes(ANY, "rows" if mark == "rows" else "tile") for mark in (*row.marks, ""))
    gives = tuple(Gives("asked", layout="rows" if r.startswith("rows ") else "tile") for r in row.results or [""])
    calls: dict[str, Any] = {language: read_call(text)[1] for language, text in row.calls.items()}
    if "cpp" in calls:
        calls["cpp_results"] = read_call(row.calls["cpp"])[0]
    known = {f.name: getattr(definition, f.name) for f in fields(definition)}
    return TtnnOp(**known, **calls, accepts=Forms(takes, gives, alike=False))


_DEFINED = {definition.full_name for table in (ttir.OPS, ttnn.OPS, memory.OPS) for definition in table.values()}
OPS.update((name, _without_meaning(name, row)) for name, row in ROWS.items() if name not in _DEFINED)


HOST_CALL = "ttnn.host_call"
"""The call of a function that upstream has moved to the host and compiled: the text has LLVM's code of it alone."""
_BEFORE = "take the text from before that pass, ttnn_*.mlir"


def _host_call(call: Call) -> Sequence[jax.Array]:
    return _opaque(f"{call['callee']}, a function of the host in LLVM's code ({_BEFORE}),", call)


OPS[HOST_CALL] = replace(
    _without_meaning(HOST_CALL, read_row(f"{HOST_CALL}(operands*) {{callee: text}} -> results*")[HOST_CALL]),
    traits=frozenset({Trait.TEXTUAL, Trait.OPAQUE, Trait.NOT_UPSTREAM}),
    meaning=_host_call,
    accepts=replace(refused(f"It is compiled for the host; {_BEFORE}"), gives=(Gives("asked"),)),
)


# --- with a meaning --------------------------------------------------------------------------------------------------


def _cumprod(call: Call) -> jax.Array:
    (x,) = call.operands
    return jnp.cumprod(x, call.check_dim(call["dim"], x.ndim, "dim"), dtype=x.dtype)


def _same(call: Call) -> jax.Array:
    return call.operands[0]


def _bitcast(call: Call) -> jax.Array:
    return lax.bitcast_convert_type(call.operands[0], call.result.dtype)


def _pow_scalar(call: Call) -> jax.Array:
    (x,) = call.operands
    power: Any = elementwise.OPS["pow"].meaning
    return power(replace(call, operands=(x, jnp.asarray(call["rhs"], x.dtype))))


def _conv1d(call: Call) -> jax.Array:
    """Computes TTNN's convolution along one dim: the result is flat, and the bias (1, 1, 1, outputs)."""
    call.require("activation = " not in str(call["conv2d_config"]), "applies no function to its result here")
    x, weight, *bias = call.operands
    operands = (x, weight, *(jnp.reshape(b, (1, 1, -1)) for b in bias))
    dims = {"batch_dim": 0, "length_dim": 1, "channel_dim": 2, "operandSegmentSizes": None}
    out = ttir_images.conv1d(replace(call, operands=operands, attributes={**call.attributes, **dims}))
    return jnp.reshape(out, (1, 1, -1, out.shape[-1]))


def _group_norm(call: Call) -> jax.Array:
    """Computes `torch.nn.functional.group_norm` of each group of channels; a mask only tells where a group ends."""
    x, _, weight, bias = call.optional_operands(("input", "input_mask", "weight", "bias"))
    dim = call.check_dim(call.attributes.get("channel_dim", x.ndim - 1), x.ndim, "channel_dim")
    channels, groups = x.shape[dim], call["num_groups"]
    call.require(groups > 0 and channels % groups == 0, f"num_groups = {groups} does not divide {channels} channels")
    last = jnp.moveaxis(x.astype(jnp.float32), dim, -1)
    grouped = last.reshape(x.shape[0], -1, groups, channels // groups)
    mean, variance = (f(grouped, axis=(1, 3), keepdims=True) for f in (jnp.mean, jnp.var))
    y = ((grouped - mean) * lax.rsqrt(variance + call["epsilon"])).reshape(last.shape)
    y = y if weight is None else jnp.multiply(*vary_together(y, weight.reshape(-1)))
    y = y if bias is None else jnp.add(*vary_together(y, bias.reshape(-1)))
    return jnp.moveaxis(y, -1, dim).astype(x.dtype)


def _prepared_weight(call: Call) -> jax.Array:
    """Computes the matrix of a weight (outputs, inputs of a group, depth, height, width), by blocks of inputs."""
    (weight,) = call.operands
    outs, inputs, *kernel = weight.shape
    whole, block = -(-inputs // call["alignment"]) * call["alignment"], call["c_in_block"]
    call.require(block > 0 and whole % block == 0, f"c_in_block = {block} does not divide {whole} inputs")
    padded = jnp.pad(weight, [(0, 0), (0, whole - inputs), *[(0, 0)] * 3])
    blocks = padded.reshape(outs, whole // block, block, *kernel)
    return blocks.transpose(1, 3, 4, 5, 2, 0).reshape(-1, outs)


def _conv3d(call: Call) -> jax.Array:
    """Computes TTNN's convolution along three dims, with the weight as a matrix."""
    x, rows, *bias = call.operands
    kernel, inputs = call["kernel_size"], call["in_channels"] // call["groups"]
    found = re.search(r"c_in_block = ([0-9]+)", str(call["conv3d_config"]))
    block = int(found[1]) if found and int(found[1]) else inputs
    weight = rows.reshape(-1, *kernel, block, rows.shape[-1]).transpose(5, 0, 4, 1, 2, 3)
    weight = weight.reshape(rows.shape[-1], -1, *kernel)[:, :inputs]
    dims = {"batch_dim": 0, "depth_dim": 1, "height_dim": 2, "width_dim": 3, "channel_dim": 4}
    attributes = {**call.attributes, **dims, "operandSegmentSizes": None}
    return ttir_images.conv3d(replace(call, operands=(x, weight, *bias), attributes=attributes))


_MEANINGS: Mapping[str, Any] = {
    **dict.fromkeys(("ttir.cumprod", "ttnn.cumprod"), _cumprod),
    **dict.fromkeys(("ttir.bitcast_convert", "ttnn.bitcast_convert"), _bitcast),
    **dict.fromkeys(("ttir.group_norm", "ttnn.group_norm"), _group_norm),
    "ttir.conv1d": ttir_images.conv1d,
    "ttnn.conv1d": _conv1d,
    "ttir.conv3d": ttir_images.conv3d,
    "ttnn.conv3d": _conv3d,
    "ttnn.prepare_conv3d_weights": _prepared_weight,
    **dict.fromkeys(("ttnn.prepare_conv2d_weights", "ttnn.prepare_conv_transpose2d_weights"), images.prepared_weight),
    **dict.fromkeys(("ttnn.prepare_conv2d_bias", "ttnn.prepare_conv_transpose2d_bias"), _same),
    "ttir.max_pool2d_with_indices": ttir_images.max_pool2d_with_indices,
    "ttnn.max_pool2d_with_indices": images.max_pool2d_with_indices,
    "ttnn.slice_dynamic": shapes.OPS["slice_dynamic"].meaning,
    "ttnn.clamp_tensor": elementwise.OPS["clamp_tensor"].meaning,
    "ttnn.pow_scalar": _pow_scalar,
}
"""The meanings of operations that the table describes."""
for _name, _meaning in _MEANINGS.items():
    _traits = {Trait.TEXTUAL, Trait.MOVES} if _name == "ttnn.slice_dynamic" else {Trait.TEXTUAL}
    OPS[_name] = replace(OPS[_name], meaning=_meaning, traits=frozenset(_traits))
