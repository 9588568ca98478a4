"""Products, normalisations and attention of TTNN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxmesh.dialects.op import Call, attr
from jaxmesh.dialects.ttir.helpers import check_rank, check_shape, jnp, lax, optional_operands, require
from jaxmesh.dialects.ttnn.forms import BF16, FLOAT, FLOATS, PRODUCT, Forms, Gives, Occurrence, Takes, forms, refused
from jaxmesh.dialects.ttnn.op import (
    COMPUTE,
    DTYPE,
    MEMORY,
    TtnnOp,
    attribute,
    define,
    operand,
    positional,
    text,
    ttir_meaning,
    unset,
)

OPS: dict[str, TtnnOp] = {}
_A, _B = operand("input_tensor_a", 0), operand("input_tensor_b", 1)
_BIAS = operand("bias", 2, keyword=True, default=None)
_OPTIONS = (
    attribute("transpose_a", keyword=True, default=False),
    attribute("transpose_b", keyword=True, default=False),
    MEMORY,
    DTYPE,
    unset("program_config"),
    unset("activation"),
    COMPUTE,
)

_HOW = ("compute_config", "matmul_program_config", "activation")
_FORMS = Forms((Takes(FLOATS),), (PRODUCT,))

define(OPS, "matmul", options=_HOW, python=[_A, _B, *_OPTIONS], accepts=_FORMS)
define(OPS, "linear", options=_HOW, python=[_A, _B, _BIAS, *_OPTIONS], accepts=_FORMS)


_X = operand("input_tensor")
_EPSILON = attribute("epsilon", keyword=True, form="float", default=1e-12)
_WEIGHT = operand("weight", 1, keyword=True, default=None)
_RESIDUAL = unset("residual_input_tensor")


def _over_last_dim(call: Call) -> Any:
    """Performs TTIR's normalisation over the last dim: TTNN normalises no other."""
    x = call.operands[0]
    require(call, x.ndim > 0, "a scalar has no dim to normalise")
    # The real functions also take a weight or bias of one row.
    rows = [lax.reshape(p, x.shape[-1:]) if p.shape == (1, *x.shape[-1:]) else p for p in call.operands[1:]]
    return ttir_meaning(replace(call, operands=(x, *rows)), normalized_shape=x.shape[-1:])


for _name in ("layer_norm", "rms_norm"):
    define(
        OPS,
        _name,
        options=["compute_config"] if _name == "rms_norm" else (),
        omit=["normalized_shape"],
        meaning=_over_last_dim,
        python=[_X, _EPSILON, _WEIGHT, _BIAS, _RESIDUAL, MEMORY, COMPUTE],
        cpp=positional(
            _X,
            _EPSILON,
            _WEIGHT,
            _BIAS,
            _RESIDUAL,
            MEMORY,
            unset("program_config"),
            *([COMPUTE] if _name == "rms_norm" else []),
        ),
        accepts=FLOAT,
    )


def _batch_norm(call: Call) -> Any:
    names = ("input", "running_mean", "running_var", "weight", "bias")
    x, mean, variance, scale, offset = found = optional_operands(call, names)
    absent = ", ".join(n for n, v in zip(names[:3], found, strict=False) if v is None)
    require(call, not absent, f"{absent} is absent; give it")
    check_rank(call, x, 4, "the input (batch, channels, height, width)")
    channels = (1, x.shape[1], 1, 1)
    scale = jnp.ones(channels, x.dtype) if scale is None else scale
    offset = jnp.zeros(channels, x.dtype) if offset is None else offset
    for per_channel in (mean, variance, scale, offset):
        check_shape(call, per_channel, channels, "mean, variance, weight or bias")
    rows = [lax.reshape(p, (x.shape[1],)) for p in (scale, offset, mean, variance)]
    return ttir_meaning(replace(call, operands=(x, *rows)), dimension=1, operandSegmentSizes=None)


_BATCH = (
    operand("input"),
    operand("running_mean", 1, keyword=True, default=None),
    operand("running_var", 2, keyword=True, default=None),
    attribute("eps", "epsilon", keyword=True, form="float", default=1e-5),
    operand("weight", 3, keyword=True, default=None),
    operand("bias", 4, keyword=True, default=None),
    MEMORY,
    COMPUTE,
)
define(
    OPS,
    "batch_norm_inference",
    operands=(1, 5),
    omit=["dimension"],
    respelled=[attr("epsilon", "float", 1e-5)],
    options=["compute_config"],
    callee="ttnn.batch_norm",
    meaning=_batch_norm,
    python=_BATCH,
    cpp=[
        *positional(*_BATCH[:3]),
        text("training", "false"),
        *positional(_BATCH[3]),
        text("momentum", "0.1f"),
        *positional(*_BATCH[4:6], unset("output"), MEMORY, COMPUTE),
    ],
    accepts=FLOAT,
    work=(0, 2),
)


# --- attention -------------------------------------------------------------------------------------------------------


_Q, _K, _V = operand("input_tensor_q", 0), operand("input_tensor_k", 1), operand("input_tensor_v", 2)
_SCORES = (
    operand("attn_mask", 3, keyword=True, default=None),
    attribute("is_causal", keyword=True, default=True),
    attribute("scale", keyword=True, default=None),
    MEMORY,
)


def _attention(op: Occurrence) -> Forms:
    """Returns the forms of attention: if each query sees the keys up to its own place, there are as many keys."""
    queries, keys = op.operands[:2]
    causal = op.attributes.get("is_causal", True)
    if causal and queries is not None and keys is not None and queries.shape[-2:-1] != keys.shape[-2:-1]:
        return refused("Causal attention takes queries and keys of one length there; pass a mask")
    return forms(frozenset({BF16}))


define(
    OPS,
    "scaled_dot_product_attention",
    callee="ttnn.transformer.scaled_dot_product_attention",
    python=[_Q, _K, _V, *_SCORES],
    cpp=positional(_Q, _K, _V, *_SCORES[:3], unset("sliding_window_size"), MEMORY),
    accepts=_attention,
)


def _heads(op: Occurrence) -> Forms:
    x = op.operands[0]
    whole = x is None or x.shape[-1] % 32 == 0
    return FLOAT if whole else refused("The size of a head is a multiple of 32 there; permute and reshape instead")


define(
    OPS,
    "concatenate_heads",
    callee="ttnn.transformer.concatenate_heads",
    python=[_X, MEMORY],
    accepts=_heads,
    work=(0, 0),
)

_HEADS = (
    operand("kv_input_tensor", 1, default=None),
    attribute("num_heads", keyword=True),
    attribute("num_kv_heads", keyword=True, default=None),
    attribute("transpose_key", keyword=True, default=True),
    MEMORY,
)
define(
    OPS,
    "split_query_key_value_and_split_heads",
    callee="ttnn.transformer.split_query_key_value_and_split_heads",
    python=[_X, *_HEADS],
    accepts=Forms((Takes(FLOATS),), (Gives(),) * 3),
    work=(0, 0),
)

_ROTATED = (_X, operand("cos_cache", 1), operand("sin_cache", 2), unset("token_index"), MEMORY, COMPUTE)


def _rotated(op: Occurrence) -> Forms:
    whole = op.results[0].shape[-2] % 32 == 0
    return FLOAT if whole else refused("The rows of the result fill its last tile there; declare that many, and slice")


define(
    OPS,
    "rotary_embedding",
    options=["compute_config"],
    callee="ttnn.experimental.rotary_embedding",
    python=_ROTATED,
    cpp=positional(*_ROTATED[:-1]),
    accepts=_rotated,
    work=(0, 3),
)
