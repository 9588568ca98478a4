"""Products, normalisations and attention of TTNN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxmesh.dialects.op import Call
from jaxmesh.dialects.ttir.helpers import jnp, lax
from jaxmesh.dialects.ttnn.forms import BF16, FLOAT, FLOATS, PRODUCT, Forms, Gives, Occurrence, Takes, forms, refused
from jaxmesh.dialects.ttnn.op import TtnnOps, ttir_meaning

OPS = TtnnOps()

_HOW = ("compute_config", "matmul_program_config", "activation")
_FORMS = Forms((Takes(FLOATS),), (PRODUCT,))

OPS.define(
    "matmul",
    python=(
        "(input_tensor_a:%0, input_tensor_b:%1, transpose_a=, transpose_b=, memory_config=@, dtype=@, "
        "program_config=none, activation=none, compute_kernel_config=@compute_config)"
    ),
    options=_HOW,
    accepts=_FORMS,
)
OPS.define(
    "linear",
    python=(
        "(input_tensor_a:%0, input_tensor_b:%1, bias=%2, transpose_a=, transpose_b=, memory_config=@, dtype=@, "
        "program_config=none, activation=none, compute_kernel_config=@compute_config)"
    ),
    options=_HOW,
    accepts=_FORMS,
)


def _over_last_dim(call: Call) -> Any:
    """Performs TTIR's normalisation over the last dim: TTNN normalises no other."""
    x = call.operands[0]
    call.require(x.ndim > 0, "a scalar has no dim to normalise")
    # The real functions also take a weight or bias of one row.
    rows = [lax.reshape(p, x.shape[-1:]) if p.shape == (1, *x.shape[-1:]) else p for p in call.operands[1:]]
    return ttir_meaning(replace(call, operands=(x, *rows)), normalized_shape=x.shape[-1:])


for _name in ("layer_norm", "rms_norm"):
    OPS.define(
        _name,
        python=(
            "(input_tensor:%0, epsilon=|float, weight=%1, bias=%2, residual_input_tensor=none, memory_config=@, "
            "compute_kernel_config=@compute_config)"
        ),
        cpp=f"(%0, epsilon|float, %1, %2, none, @memory_config, none{', @compute_config' * (_name == 'rms_norm')})",
        options=["compute_config"] if _name == "rms_norm" else (),
        omit=["normalized_shape"],
        meaning=_over_last_dim,
        accepts=FLOAT,
    )


def _batch_norm(call: Call) -> Any:
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


OPS.define(
    "batch_norm_inference",
    python=(
        "ttnn.batch_norm(input:%0, running_mean=%1, running_var=%2, eps=epsilon|float, weight=%3, bias=%4, "
        "memory_config=@, compute_kernel_config=@compute_config)"
    ),
    cpp="(%0, %1, %2, `false`, epsilon|float, `0.1f`, %3, %4, none, @memory_config, @compute_config)",
    operands=(1, 5),
    omit=["dimension"],
    respelled="epsilon?: f32 = 1e-5",
    options=["compute_config"],
    meaning=_batch_norm,
    accepts=FLOAT,
    work=(0, 2),
)


# --- attention -------------------------------------------------------------------------------------------------------


def _attention(op: Occurrence) -> Forms:
    """Returns the forms of attention: if each query sees the keys up to its own place, there are as many keys."""
    queries, keys = op.operands[:2]
    causal = op.attributes.get("is_causal", True)
    if causal and queries is not None and keys is not None and queries.shape[-2:-1] != keys.shape[-2:-1]:
        return refused("Causal attention takes queries and keys of one length there; pass a mask")
    return forms(frozenset({BF16}))


OPS.define(
    "scaled_dot_product_attention",
    python=(
        "ttnn.transformer.scaled_dot_product_attention(input_tensor_q:%0, input_tensor_k:%1, input_tensor_v:%2, "
        "attn_mask=%3, is_causal=, scale=, memory_config=@)"
    ),
    cpp="(%0, %1, %2, %3, is_causal, scale, none, @memory_config)",
    accepts=_attention,
)


def _heads(op: Occurrence) -> Forms:
    x = op.operands[0]
    whole = x is None or x.shape[-1] % 32 == 0
    return FLOAT if whole else refused("The size of a head is a multiple of 32 there; permute and reshape instead")


OPS.define(
    "concatenate_heads",
    python="ttnn.transformer.concatenate_heads(input_tensor:%0, memory_config=@)",
    accepts=_heads,
    work=(0, 0),
)

OPS.define(
    "split_query_key_value_and_split_heads",
    python=(
        "ttnn.transformer.split_query_key_value_and_split_heads(input_tensor:%0, kv_input_tensor:%1, num_heads=, "
        "num_kv_heads=, transpose_key=, memory_config=@)"
    ),
    cpp=(
        "tuple ttnn::transformer::split_query_key_value_and_split_heads(%0, %1, num_heads, num_kv_heads, "
        "transpose_key, @memory_config)"
    ),
    accepts=Forms((Takes(FLOATS),), (Gives(),) * 3),
    work=(0, 0),
)


def _rotated(op: Occurrence) -> Forms:
    whole = op.results[0].shape[-2] % 32 == 0
    return FLOAT if whole else refused("The rows of the result fill its last tile there; declare that many, and slice")


OPS.define(
    "rotary_embedding",
    python=(
        "ttnn.experimental.rotary_embedding(input_tensor:%0, cos_cache:%1, sin_cache:%2, token_index=, "
        "memory_config=@, compute_kernel_config=@compute_config)"
    ),
    cpp="(%0, %1, %2, token_index, @memory_config)",
    attributes="token_index?: ui32",
    options=["compute_config"],
    accepts=_rotated,
    work=(0, 3),
)
