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
ROWS: dict[str, frozenset[int]] = {}
"""By name of an op of TTNN: the numbers of the operands that it takes in rows."""

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
) -> None:
    """Adds an op of both dialects; `ttnn` are its attributes in TTNN where they have other forms."""
    row = OpDef(name, arity(operands), attributes, meaning, (results, results), True, frozenset({Trait.TEXTUAL}))
    forms = {"ttir": attributes, "ttnn": attributes if ttnn is None else tuple(ttnn)}
    for dialect in dialects:
        OPS[f"{dialect}.{name}"] = replace(row, attributes=forms[dialect], writes=writes)
    ROWS[f"ttnn.{name}"] = frozenset(rows)


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
_define("chunked_scaled_dot_product_attention", 5, _SCALE, rows=(3, 4))
_define("paged_scaled_dot_product_attention_decode", (4, 7), _CAUSAL, _SCALE, _WINDOW, rows=(3, 5))
_define(
    "paged_flash_multi_latent_attention_decode",
    (3, 7),
    need("head_dim_v", "int", form="ui32"),
    _CAUSAL,
    _SCALE,
    rows=(3, 5),
)
_define("nlp_concat_heads_decode", 1, need("num_heads", "int", form="ui32"), dialects=["ttnn"])
