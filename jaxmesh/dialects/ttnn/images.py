"""Convolutions, pooling and resizing of TTNN.

Images are (batch, height, width, channels). Except for resizing, operands and results have the shape (1, 1, batch *
height * width, channels), and the sizes are attributes. Paddings are (height, width) or (top, bottom, left, right).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax

from jaxmesh.dialects.op import Call, Shape, describe
from jaxmesh.dialects.ttir import images
from jaxmesh.dialects.ttir.helpers import lax
from jaxmesh.dialects.ttir.images import read_pair
from jaxmesh.dialects.ttnn.forms import BF16, FLOATS, NUMBERS, PRODUCT, Forms, Gives, Takes, forms
from jaxmesh.dialects.ttnn.op import TtnnOps, ttir_meaning

OPS = TtnnOps()


def _image(call: Call, x: jax.Array, channels: int) -> jax.Array:
    shape = tuple(call[name] for name in ("batch_size", "input_height", "input_width"))
    call.check_shape(x, (1, 1, shape[0] * shape[1] * shape[2], channels), "the input (1, 1, all pixels, channels)")
    return lax.reshape(x, (*shape, channels))


def _flat(out: jax.Array) -> jax.Array:
    return lax.reshape(out, (1, 1, out.shape[0] * out.shape[1] * out.shape[2], out.shape[3]))


def _window(call: Call) -> dict[str, object]:
    """Returns the attributes of TTIR's op, whose padding is (top, left, bottom, right)."""
    padding = call["padding"]
    call.require(len(padding) in (2, 4), f"padding has 2 or 4 entries, got {list(padding)}")
    top, bottom, left, right = padding if len(padding) == 4 else (padding[0], padding[0], padding[1], padding[1])
    return {"padding": (top, left, bottom, right), "operandSegmentSizes": None}


# --- convolutions ----------------------------------------------------------------------------------------------------

_NHWC: Mapping[str, int] = {"batch_dim": 0, "height_dim": 1, "width_dim": 2, "channel_dim": 3}


def _convolution(call: Call) -> jax.Array:
    x, weight, bias = call.optional_operands(("input", "weight", "bias"))
    weight = _unprepared(call, weight)
    kernel: Shape = weight.shape[2:]
    outs = weight.shape[0] if call.name == "conv2d" else weight.shape[1] * call["groups"]
    call.require(outs == call["out_channels"], f"out_channels = {call['out_channels']}, but the weight gives {outs}")
    call.check_length("kernel_size", kernel, len(call["kernel_size"]), "height and width")
    rule = f"kernel_size = {list(call['kernel_size'])}, but the weight has {list(kernel)}"
    call.require(kernel == call["kernel_size"], rule)
    operands = (_image(call, x, call["in_channels"]), weight)
    if bias is not None:
        call.check_shape(bias, (1, 1, 1, outs), "the bias")
        operands = (*operands, bias)
    return _flat(ttir_meaning(replace(call, operands=operands), **_window(call), **_NHWC))


def prepared_weight(call: Call) -> jax.Array:
    """Computes the matrix of a weight, (1, 1, inputs * height * width, outputs), as upstream's golden function does."""
    (weight,) = call.operands
    order = (0, 2, 3, 1) if "transpose" in call.name else (1, 2, 3, 0)
    call.require(weight.size == math.prod(call.result.shape), f"the result has the elements of {describe(weight)}")
    return lax.reshape(weight, call.result.shape, order)


def _unprepared(call: Call, weight: jax.Array) -> jax.Array:
    """Returns the weight of four dims for a matrix of `prepared_weight`; other weights unchanged."""
    height, width = read_pair(call, "kernel_size")
    rows, outs = weight.shape[-2:]
    if weight.shape[:2] != (1, 1) or (rows, outs) == (height, width) or rows % (height * width):
        return weight
    split = lax.reshape(weight, (rows // (height * width), height, width, outs))
    return lax.transpose(split, (3, 0, 1, 2) if call.name == "conv2d" else (0, 3, 1, 2))


def _convolve(host: bool) -> Forms:
    """Returns the forms of a convolution; its weight is in rows, on the host if the convolution is transposed."""
    operands = (Takes(FLOATS, "either"), Takes(FLOATS, "rows", host=host), Takes(FLOATS, "either"))
    return Forms(operands, (PRODUCT,))


OPS.define("conv2d", meaning=_convolution, accepts=_convolve(host=False))
OPS.define("conv_transpose2d", meaning=_convolution, accepts=_convolve(host=True))


# --- pooling ---------------------------------------------------------------------------------------------------------


def _as_pool(call: Call) -> Call:
    """Returns the call of TTIR's pool."""
    (x,) = call.operands
    image = _image(call, x, call["channels"])
    changed = {"dilation": call.attributes.get("dilation", 1), "kernel": call["kernel_size"], **_window(call)}
    return replace(call, operands=(image,), attributes={**call.attributes, **changed})


def _pool(call: Call) -> jax.Array:
    return _flat(ttir_meaning(_as_pool(call)))


def max_pool2d_with_indices(call: Call) -> Sequence[jax.Array]:
    """Computes a pool with the places of its elements as TTIR does, in TTNN's shapes."""
    return tuple(map(_flat, images.max_pool2d_with_indices(_as_pool(call))))


_POOL_FORMS = Forms((Takes(frozenset({BF16}), "either"),), (Gives(BF16, layout="rows"),))
OPS.define("max_pool2d", meaning=_pool, accepts=_POOL_FORMS)
OPS.define("avg_pool2d", meaning=_pool, accepts=_POOL_FORMS)

OPS.define("global_avg_pool2d", accepts=forms(FLOATS), work=(1, 0))


OPS.define(
    "upsample", meaning=lambda call: ttir_meaning(call, "upsample2d"), accepts=forms(NUMBERS, "rows"), work=(0, 0)
)
