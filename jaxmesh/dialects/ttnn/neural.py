"""Products, normalisations and attention of TTNN."""

from __future__ import annotations

from dataclasses import replace

import jax

from jaxmesh.dialects.op import Call
from jaxmesh.dialects.ttir.helpers import jnp, lax
from jaxmesh.dialects.ttnn.forms import BF16, FLOAT, FLOATS, PRODUCT, Forms, Gives, Occurrence, Takes, forms, refused
from jaxmesh.dialects.ttnn.op import TtnnOps, ttir_meaning

OPS = TtnnOps()

_FORMS = Forms((Takes(FLOATS),), (PRODUCT,))

OPS.define("matmul", accepts=_FORMS)
OPS.define("linear", accepts=_FORMS)


def _over_last_dim(call: Call) -> jax.Array:
    """Performs TTIR's normalisation over the last dim: TTNN normalises no other."""
    x = call.operands[0]
    call.require(x.ndim > 0, "a scalar has no dim to normalise")
    # The real functions also take a weight or bias of one row.
    rows = [lax.reshape(p, x.shape[-1:]) if p.shape == (1, *x.shape[-1:]) else p for p in call.operands[1:]]
    return ttir_meaning(replace(call, operands=(x, *rows)), normalized_shape=x.shape[-1:])


for _name in ("layer_norm", "rms_norm"):
    OPS.define(_name, meaning=_over_last_dim, accepts=FLOAT)


def _batch_norm(call: Call) -> jax.Array:
    names = ("input", "running_mean", "running_var", "weight", "bias")
    x, mean, variance, scale, offset = found = call.optional_operands(names)
    absent = ", ".join(n for n, v in zip(names[:3], found, strict=False) if v is None)
    call.require(not absent, f"{absent} is absent; give it")
    call.check_rank(x, 4, "the input (batch, channels, height, width)")
    channels = (1, x.shape[1], 1, 1)
    scale = jnp.ones(channels, x.dtype) if scale is None else scale
    offset = jnp.zeros(channels, x.dtype) if offset is None else offset
    for per_channel in (mean, variance, scale, offset):
        call.check_shape(per_channel, channels, "mean, variance, weight or bias")
    rows = [lax.reshape(p, (x.shape[1],)) for p in (scale, offset, mean, variance)]
    return ttir_meaning(replace(call, operands=(x, *rows)), dimension=1, operandSegmentSizes=None)


OPS.define("batch_norm_inference", meaning=_batch_norm, accepts=FLOAT, work=(0, 2))


# --- attention -------------------------------------------------------------------------------------------------------


def _attention(op: Occurrence) -> Forms:
    """Returns the forms of attention: if each query sees the keys up to its own place, there are as many keys."""
    queries, keys = op.operands[:2]
    causal = op.attributes.get("is_causal", True)
    if causal and queries is not None and keys is not None and queries.shape[-2:-1] != keys.shape[-2:-1]:
        return refused("Causal attention takes queries and keys of one length there; pass a mask")
    return forms(frozenset({BF16}))


OPS.define("scaled_dot_product_attention", accepts=_attention)


def _heads(op: Occurrence) -> Forms:
    x = op.operands[0]
    whole = x is None or x.shape[-1] % 32 == 0
    return FLOAT if whole else refused("The size of a head is a multiple of 32 there; permute and reshape instead")


OPS.define("concatenate_heads", accepts=_heads, work=(0, 0))

OPS.define("split_query_key_value_and_split_heads", accepts=Forms((Takes(FLOATS),), (Gives(),) * 3), work=(0, 0))


def _rotated(op: Occurrence) -> Forms:
    whole = op.results[0].shape[-2] % 32 == 0
    return FLOAT if whole else refused("The rows of the result fill its last tile there; declare that many, and slice")


OPS.define("rotary_embedding", accepts=_rotated, work=(0, 3))
