"""Operations of both dialects that are read, lowered and printed as MLIR, and have no call in Python and C++.

Most have no meaning here either: they travel through the passes with the types that the text gives them, and a program
that has one of them is no program that runs. Their definitions are those of tt-mlir 19c86fca
(include/ttmlir/Dialect/TTIR/IR/TTIROps.td, include/ttmlir/Dialect/TTNN/IR/TTNNOps.td).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from jaxmesh.dialects.op import Arity, Attribute, Call, Meaning, OpDef, Trait, arity, attr, need
from jaxmesh.dialects.ttir.helpers import check_dim, jnp, lax, vary_together
from jaxmesh.dialects.ttnn.data_types import ANY
from jaxmesh.dialects.ttnn.forms import Forms, Gives, Takes
from jaxmesh.jaxprs import compat

OPS: dict[str, OpDef] = {}
"""By name, with the dialect."""
TAKES_DEVICE: set[str] = set()
"""Names of ops of TTNN that read the mesh device."""
ROWS: dict[str, frozenset[int]] = {}
"""By name of an op of TTNN: the numbers of the operands that it takes in rows."""

MUTATES: dict[str, frozenset[int]] = {}
"""By name of an op: the numbers of the operands that it changes where they are, beside the one of `OpDef.writes`."""

opaque_p = compat.unlowered_primitive("opaque_op")
opaque_p.multiple_results = True


@opaque_p.def_abstract_eval
def _opaque_types(*operands: Any, name: str, results: Sequence[jax.ShapeDtypeStruct]) -> list[Any]:
    first = operands[0]
    return [compat.retype(first, r.shape, compat.varying_axes(first)).update(dtype=r.dtype) for r in results]


def _opaque(call: Call) -> Any:
    results = call.results or tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in call.operands[:1])
    return opaque_p.bind(*vary_together(*call.operands), name=call.name, results=results)


def forms_of(name: str, operands: int) -> Forms:
    """Returns the forms in which an op of TTNN takes so many operands: as they are, in tiles but for some in rows."""
    rows = ROWS.get(name, frozenset[int]())
    takes = [Takes(ANY, "rows" if i in rows else "tile") for i in range(max(operands, 1))]
    return Forms(tuple(takes), (Gives("asked", layout="tile"),), alike=False)


def _define(
    name: str,
    operands: int | Arity,
    *attributes: Attribute,
    ttnn: Sequence[Attribute] | None = None,
    results: int = 1,
    meaning: Meaning = _opaque,
    writes: int | None = None,
    rows: Sequence[int] = (),
    dialects: Sequence[str] = ("ttir", "ttnn"),
    takes_device: bool = False,
    mutates: Sequence[int] = (),
) -> None:
    """Adds an op of both dialects; `ttnn` are its attributes in TTNN where they are others."""
    row = OpDef(name, arity(operands), attributes, meaning, (results, results), True, frozenset({Trait.TEXTUAL}))
    forms = {"ttir": attributes, "ttnn": attributes if ttnn is None else tuple(ttnn)}
    for dialect in dialects:
        OPS[f"{dialect}.{name}"] = replace(row, attributes=forms[dialect], writes=writes)
    if mutates:
        MUTATES[f"ttnn.{name}"] = frozenset(mutates)
    if rows:
        ROWS[f"ttnn.{name}"] = frozenset(rows)
    if takes_device:
        TAKES_DEVICE.add(f"ttnn.{name}")


# --- with a meaning --------------------------------------------------------------------------------------------------


def _cumprod(call: Call) -> Any:
    (x,) = call.operands
    return jnp.cumprod(x, check_dim(call, call["dim"], x.ndim, "dim"), dtype=x.dtype)


def _bitcast(call: Call) -> Any:
    return lax.bitcast_convert_type(call.operands[0], call.result.dtype)


_define("cumprod", 1, need("dim", "int", form="i64"), ttnn=[need("dim", "int")], meaning=_cumprod)
_define("bitcast_convert", 1, meaning=_bitcast)


# --- without ---------------------------------------------------------------------------------------------------------

_SCALE = attr("scale", "float")
_CAUSAL = attr("is_causal", "bool", True)
_WINDOW = attr("sliding_window_size", "int", form="ui32")
_EXPERTS = need("k", "int", form="i32"), need("num_experts", "int", form="i32")
_SIZES = ("hidden_size", "batch_size", "seq_size", "select_experts_k", "experts")

_define(
    "dropout",
    1,
    attr("prob", "float", 0.0),
    attr("scale", "float", 1.0),
    attr("seed", "int", 0, form="ui32"),
    attr("use_per_device_seed", "bool", True),
)
_define("sampling", 5, attr("seed", "int", form="ui32"))
_define("topk_router_gpt", 3, *_EXPERTS, results=2)
_define("selective_reduce_combine", 4, *(need(name, "int", form="ui32") for name in _SIZES))
_define("paged_fill_cache", (3, 4), writes=0, rows=(2, 3))
_define("paged_update_cache", (3, 4), attr("share_cache", "bool", False), writes=0, rows=(2, 3))
_define("chunked_scaled_dot_product_attention", 5, _SCALE, rows=(3, 4), dialects=["ttnn"])
_define("chunked_scaled_dot_product_attention", 6, _SCALE, dialects=["ttir"])
_define("paged_scaled_dot_product_attention_decode", (4, 7), _CAUSAL, _SCALE, _WINDOW, rows=(3, 5), dialects=["ttnn"])
_define("paged_scaled_dot_product_attention_decode", (5, 8), _CAUSAL, _SCALE, _WINDOW, dialects=["ttir"])
_define(
    "paged_flash_multi_latent_attention_decode",
    (2, 7),
    need("head_dim_v", "int", form="ui32"),
    _CAUSAL,
    _SCALE,
    rows=(3, 5),
)
_define("clamp_tensor", 3, dialects=["ttnn"])
_define("pow_scalar", 1, need("rhs", "number"), dialects=["ttnn"])
_define("slice_dynamic", 3, attr("step", "ints"), dialects=["ttnn"], rows=(1, 2))
_define("nlp_concat_heads_decode", 1, need("num_heads", "int", form="ui32"), dialects=["ttnn"])
_define(
    "batch_norm_training",
    5,
    need("dimension", "int", form="i32"),
    need("epsilon", "float"),
    need("momentum", "float"),
    results=3,
    dialects=["ttir"],
)
_define(
    "batch_norm_training",
    (3, 5),
    attr("epsilon", "float", 1e-5),
    attr("momentum", "float", 0.1),
    dialects=["ttnn"],
    mutates=(1, 2),
)

# --- windows ---------------------------------------------------------------------------------------------------------


def _ints(*names: str) -> list[Attribute]:
    return [need(name, "int", form="i32") for name in names]


def _rows(*names: str) -> list[Attribute]:
    return [need(name, "ints", form="i32a") for name in names]


def _dims(*names: str) -> list[Attribute]:
    return [attr(f"{name}_dim", "int", number, form="i64") for number, name in enumerate(names)]


def _any(*names: str) -> list[Attribute]:
    return [need(name, "any", form="i32") for name in names]


_CEIL = need("ceil_mode", "bool")
_MODE = attr("padding_mode", "str", "zeros")
_define(
    "max_pool2d_with_indices",
    (1, None),
    *_any("kernel", "stride", "dilation", "padding"),
    _CEIL,
    ttnn=[
        *(need(name, "int") for name in ("batch_size", "channels", "input_height", "input_width")),
        *_rows("kernel_size", "stride", "padding", "dilation"),
        _CEIL,
    ],
    results=2,
)
_define(
    "conv1d",
    (2, 3),
    *_any("stride", "padding", "dilation"),
    *_ints("groups"),
    *_dims("batch", "length", "channel"),
    ttnn=[
        *_ints("in_channels", "out_channels", "batch_size", "input_length", "kernel_size", "stride", "dilation"),
        *_rows("padding"),
        *_ints("groups"),
    ],
    takes_device=True,
)
_define(
    "conv3d",
    (2, 3),
    *_any("stride", "padding"),
    *_ints("groups"),
    _MODE,
    *_dims("batch", "depth", "height", "width", "channel"),
    ttnn=[
        *_ints("in_channels", "out_channels", "batch_size", "input_depth", "input_height", "input_width", "groups"),
        *_rows("kernel_size", "stride", "padding"),
        _MODE,
    ],
    takes_device=True,
)
_define("prepare_conv3d_weights", 1, *_ints("alignment", "c_in_block", "groups"), dialects=["ttnn"], takes_device=True)
