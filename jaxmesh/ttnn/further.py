"""Functions of `ttnn` composed of others or computed on each device, without an op that jaxmesh prints."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxmesh.dialects.op import OpDef
from jaxmesh.tensor.assemble import owner_of, set_owner
from jaxmesh.tensor.execute import NO_ARGUMENTS, perform
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.tensor_base import TensorBase
from jaxmesh.tensor.types import ON_DEVICE
from jaxmesh.ttnn.call_arguments import HOW, Binder
from jaxmesh.ttnn.conversion import convert_operands, finish, finish_one, write_result
from jaxmesh.ttnn.functions import COMPOSED, lookup, op_function
from jaxmesh.ttnn.refusals import computing, results_of
from jaxmesh.ttnn.rules import PARAMETERS as OUTPUTS
from jaxmesh.validate import as_instance


class Composed:
    """A function composed of others, callable as in `ttnn`; the arguments it does not know must be left out."""

    def __init__(self, callee: str, compute: Callable[..., Any], **also: str) -> None:
        self.callee = callee
        self.__name__ = callee.rpartition(".")[2]
        self.__qualname__, self.__module__, self.__doc__ = self.__name__, "jaxmesh.ttnn", compute.__doc__
        self._compute = compute
        COMPOSED[callee] = self
        self._binder = binder = Binder(callee, also)
        self.__signature__ = binder.signature
        known = [n for n in inspect.signature(compute).parameters if n in binder.slots]
        self._known = [(n, binder.slots[n]) for n in known]
        self._output = next((binder.slots[n] for n in OUTPUTS if n in binder.slots and n not in known), None)
        self._others = [
            (n, i) for n, i in binder.slots.items() if n not in known and n not in HOW and i != self._output
        ]

    def __repr__(self) -> str:
        return f"<{self.callee}{self.__signature__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Performs the function; see `help` of it for its arguments."""
        values = self._binder.bind(args, kwargs)
        for name, slot in self._others:
            self._binder.check_default(name, values[slot])
        results = results_of(self.callee, {name: values[slot] for name, slot in self._binder.slots.items()})
        given = {name: values[slot] for name, slot in self._known}
        if results and results[0].computed is not None:
            # A number beside a tensor is an operand; others say what is computed.
            names = [n for n, x in given.items() if n.startswith("input") or isinstance(x, TensorBase)]
            converted = convert_operands([given[n] for n in names], results[0].computed)
            given |= dict(zip(names, converted, strict=True))
        # Where no results are declared, the rules of the composing functions determine the types.
        with contextlib.nullcontext() if results == [] else computing():
            result = self._compute(**given)
        if results:
            several: Any = result
            result = finish(several, results) if isinstance(result, list) else finish_one(result, results[0])
        if self._output is not None and values[self._output] is not None:
            return write_result(self.callee, values[self._output], result)
        return result


def composed(callee: str | None = None, **also: str) -> Callable[[Callable[..., Any]], Any]:
    """Returns a decorator that gives a function the parameters of the real one; `also` as of `Binder`."""

    def decorate(compute: Callable[..., Any]) -> Any:
        return Composed(callee or f"ttnn.{compute.__name__}", compute, **also)

    return decorate


_jnp: Any = jax.numpy
_lax: Any = jax.lax


def each(title: str, key: Sequence[Any], compute: Callable[..., Any], *tensors: Any) -> Any:
    """Computes a function of tensors on each device; `key` are its other arguments."""
    name, count = f"{title.removeprefix('ttnn.')} {key!r}", len(tensors)
    definition = OpDef("ttnn", name, (count, count), (), lambda call: compute(*call.operands))
    storage = next((t.storage for t in tensors if isinstance(t, MeshTensor)), ON_DEVICE)
    (out,) = perform(definition, title, tensors, NO_ARGUMENTS, None, storage)
    return set_owner(out, owner_of(tensors))


# --- elementwise -----------------------------------------------------------------------------------------------------


@composed()
def cumprod(input_tensor: Any, dim: Any, dtype: Any, reverse_order: Any, memory_config: Any) -> Any:
    """Computes the product of the elements up to each element along a dim."""
    if not input_tensor.shape:
        return input_tensor
    key = (dim, bool(reverse_order))

    def compute(x: Any) -> Any:
        return _lax.cumprod(x, dim % x.ndim, reverse=bool(reverse_order))

    return each("ttnn.cumprod", key, compute, input_tensor)


@composed()
def cumsum(input: Any, dim: Any, dtype: Any, reverse_order: Any, memory_config: Any) -> Any:  # noqa: A002
    """Adds the elements up to each one along a dim, or from each one on."""
    if not input.shape:
        return input
    if not reverse_order:
        return op_function("ttnn.cumsum")(input, dim, dtype=dtype, memory_config=memory_config)

    def compute(x: Any) -> Any:
        return _lax.cumsum(x, dim % x.ndim, reverse=True)

    return each("ttnn.cumsum", (dim,), compute, input)


@composed("ttnn.round")
def round_(input_tensor: Any, decimals: Any, memory_config: Any) -> Any:
    """Rounds to a number of decimals, halves to even."""
    if not decimals:
        return op_function("ttnn.round")(input_tensor, memory_config=memory_config)

    def compute(x: Any) -> Any:
        return _jnp.round(x, decimals)

    return each("ttnn.round", (decimals,), compute, input_tensor)


@composed()
def softplus(input_tensor: Any, beta: Any, threshold: Any, memory_config: Any) -> Any:
    """Computes log(1 + exp(beta * x)) / beta; x itself where beta * x is above the threshold."""
    if (beta, threshold) == (1, 20):
        return op_function("ttnn.softplus")(input_tensor, memory_config=memory_config)

    def compute(x: Any) -> Any:
        return _jnp.where(x * beta > threshold, x, jax.nn.softplus(x * beta) / beta).astype(x.dtype)

    return each("ttnn.softplus", (beta, threshold), compute, input_tensor)


_SELU = (1.0506999492645264, 1.673259973526001)
"""The defaults of `selu`, as the library has them."""


@composed()
def selu(input_tensor: Any, scale: Any, alpha: Any, memory_config: Any) -> Any:
    """Computes scaled elements; an element x below zero is alpha * (exp(x) - 1) first."""
    if (scale, alpha) == _SELU:
        return op_function("ttnn.selu")(input_tensor, memory_config=memory_config)

    def compute(x: Any) -> Any:
        return (scale * _jnp.where(x > 0, x, alpha * _jnp.expm1(x))).astype(x.dtype)

    return each("ttnn.selu", (scale, alpha), compute, input_tensor)


def _whole(x: Any) -> Any:
    return _jnp.clip(_jnp.round(x), -128, 127)


@composed()
def quantize(input_tensor: Any, scale: Any, zero_point: Any, axis: Any, dtype: Any, memory_config: Any) -> Any:
    """Computes x / scale + zero point, rounded to whole numbers of 8 bits."""

    def compute(x: Any, scale: Any, zero: Any) -> Any:
        return _whole(x / scale + zero).astype(_jnp.int32)

    return _along("ttnn.quantize", compute, input_tensor, axis, scale, zero_point)


@composed()
def dequantize(input_tensor: Any, scale: Any, zero_point: Any, axis: Any, dtype: Any, memory_config: Any) -> Any:
    """Computes (x - zero point) * scale."""

    def compute(x: Any, scale: Any, zero: Any) -> Any:
        return (x.astype(_jnp.float32) - zero) * scale

    return _along("ttnn.dequantize", compute, input_tensor, axis, scale, zero_point)


@composed()
def requantize(
    input_tensor: Any, in_scale: Any, in_zero_point: Any, out_scale: Any, out_zero_point: Any, axis: Any, dtype: Any,
    memory_config: Any,
) -> Any:  # fmt: skip
    """Converts quantized numbers from one scale to another."""

    def compute(x: Any, in_scale: Any, in_zero: Any, out_scale: Any, out_zero: Any) -> Any:
        value = (x.astype(_jnp.float32) - in_zero) * in_scale
        return _whole(value / out_scale + out_zero).astype(_jnp.int32)

    given = in_scale, in_zero_point, out_scale, out_zero_point
    return _along("ttnn.requantize", compute, input_tensor, axis, *given)


def _along(title: str, compute: Callable[..., Any], x: Any, axis: Any, *given: Any) -> Any:
    """Computes with numbers, or tensors of one number or of one for each place of an axis."""
    tensors = [t for t in given if isinstance(t, MeshTensor)]

    def spread(x: Any, *rows: Any) -> Any:
        there = iter(rows)
        shape = [-1 if axis is not None and d == axis % x.ndim else 1 for d in range(x.ndim)]
        return compute(x, *(next(there).reshape(shape) if isinstance(g, MeshTensor) else g for g in given))

    return each(title, (axis, *(None if isinstance(g, MeshTensor) else g for g in given)), spread, x, *tensors)


@composed("ttnn.experimental.dropout")
def dropout(
    input_tensor: Any, probability: Any, scale: Any, seed: Any, use_per_device_seed: Any, memory_config: Any
) -> Any:
    """Sets elements to zero at random and scales the others; JAX's random numbers are not the library's."""
    if use_per_device_seed:
        # Every device draws the same numbers here; the real ones differ between devices.
        seed = seed + 1

    def compute(x: Any) -> Any:
        kept = jax.random.bernoulli(jax.random.key(seed), 1.0 - probability, x.shape)
        return _jnp.where(kept, x * scale, 0).astype(x.dtype)

    return each("ttnn.experimental.dropout", (probability, scale, seed), compute, input_tensor)


# --- heads -----------------------------------------------------------------------------------------------------------


@composed("ttnn.experimental.nlp_concat_heads")
def nlp_concat_heads(input_tensor: Any, memory_config: Any) -> Any:
    """Joins heads: [batch, heads, length, width] becomes [batch, 1, length, heads * width]."""

    def compute(x: Any) -> Any:
        moved = _jnp.moveaxis(x, 1, 2)
        return moved.reshape(x.shape[0], 1, x.shape[2], x.shape[1] * x.shape[3])

    return each("ttnn.experimental.nlp_concat_heads", (), compute, input_tensor)


@composed()
def group_norm(
    input_tensor: Any, num_groups: Any, epsilon: Any, weight: Any, bias: Any, memory_config: Any, dtype: Any,
    inplace: Any, output_layout: Any,
) -> Any:  # fmt: skip
    """Normalises groups of channels of [batch, 1, pixels, channels]; weight and bias have one number per channel."""

    def compute(x: Any, *parameters: Any) -> Any:
        batch, one, pixels, channels = x.shape
        grouped = x.astype(_jnp.float32).reshape(batch, one * pixels, num_groups, channels // num_groups)
        mean = grouped.mean((1, 3), keepdims=True)
        variance = grouped.var((1, 3), keepdims=True)
        out = ((grouped - mean) * _lax.rsqrt(variance + epsilon)).reshape(x.shape)
        names = [n for n, p in (("weight", weight), ("bias", bias)) if p is not None]
        for name, p in zip(names, parameters, strict=True):
            row = p.reshape(-1)[:channels].astype(_jnp.float32)
            out = out * row if name == "weight" else out + row
        return out.astype(x.dtype)

    tensors = [t for t in (input_tensor, weight, bias) if t is not None]
    key = (num_groups, epsilon, weight is None, bias is None)
    return each("ttnn.group_norm", key, compute, *tensors)


# --- norms of rows that are split over devices, and rotations --------------------------------------------------------


@composed()
def rms_norm_pre_all_gather(input_tensor: Any, residual_input_tensor: Any, dtype: Any, memory_config: Any) -> Any:
    """Sums the squares of each row: the first element of a tile, whose others are zero."""
    return _statistics("rms_norm_pre_all_gather", input_tensor, residual_input_tensor)


@composed()
def layer_norm_pre_all_gather(input_tensor: Any, residual_input_tensor: Any, dtype: Any, memory_config: Any) -> Any:
    """Sums the squares of each row, and the row: the first elements of two tiles, whose others are zero."""
    return _statistics("layer_norm_pre_all_gather", input_tensor, residual_input_tensor)


def _statistics(name: str, x: Any, residual: Any) -> Any:
    def compute(*parts: Any) -> Any:
        row = functools.reduce(_lax.add, [p.astype(_jnp.float32) for p in parts])
        powers = [row * row, row] if name.startswith("layer") else [row * row]
        sums: list[Any] = [p.sum(-1, keepdims=True) for p in powers]
        return _jnp.concatenate([_jnp.pad(s, [(0, 0)] * (row.ndim - 1) + [(0, 31)]) for s in sums], -1)

    return each(f"ttnn.{name}", (), compute, *(t for t in (x, residual) if t is not None))


@composed()
def layer_norm_post_all_gather(
    input_tensor: Any, stats: Any, epsilon: Any, weight: Any, bias: Any, dtype: Any, memory_config: Any
) -> Any:
    """Normalises rows by the sums of all devices, which `ttnn.all_gather` joined along the last dim."""

    def compute(x: Any, sums: Any, *parameters: Any) -> Any:
        row, width = x.astype(_jnp.float32), x.shape[-1]
        devices = sums.shape[-1] // 64
        total = sums.astype(_jnp.float32).reshape(*sums.shape[:-1], devices, 2, 32)[..., 0].sum(-2)
        square, mean = (total[..., i, None] / (devices * width) for i in (0, 1))
        made = (row - mean) * _lax.rsqrt(square - mean * mean + epsilon)
        given = iter(parameters)
        for name, parameter in (("weight", weight), ("bias", bias)):
            if parameter is not None:
                numbers = next(given).reshape(-1)[:width].astype(_jnp.float32)
                made = made * numbers if name == "weight" else made + numbers
        return made

    tensors = [t for t in (input_tensor, stats, weight, bias) if t is not None]
    return each("ttnn.layer_norm_post_all_gather", (epsilon, weight is None, bias is None), compute, *tensors)


@composed("ttnn.experimental.rotary_embedding_llama")
def rotary_embedding_llama(
    input_tensor: Any, cos_cache: Any, sin_cache: Any, trans_mat: Any, memory_config: Any
) -> Any:
    """Computes rotated pairs of elements: x * cos + (x @ trans_mat) * sin, with one matrix for every 32 elements."""

    def compute(x: Any, cos: Any, sin: Any, matrix: Any) -> Any:
        batch, heads, length, width = x.shape
        row = _jnp.pad(x.astype(_jnp.float32), ((0, 0), (0, 0), (0, 0), (0, -width % 32)))
        turned = row.reshape(batch, heads, length, -1, 32) @ matrix[0, 0].astype(_jnp.float32)
        turned = turned.reshape(row.shape)[..., :width]
        cos, sin = (t[:, :, :length].astype(_jnp.float32) for t in (cos, sin))
        return (row[..., :width] * cos + turned * sin).astype(x.dtype)

    return each("ttnn.experimental.rotary_embedding_llama", (), compute, input_tensor, cos_cache, sin_cache, trans_mat)


# --- convolutions ----------------------------------------------------------------------------------------------------


@composed()
def conv1d(
    input_tensor: Any, weight_tensor: Any, device: Any, in_channels: Any, out_channels: Any, batch_size: Any,
    input_length: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, groups: Any, bias_tensor: Any,
    dtype: Any, memory_config: Any,
) -> Any:  # fmt: skip
    """Computes a convolution of rows, by `ttnn.conv2d` of images one pixel wide."""
    row: Any = padding
    sides: list[Any] = list(row) if isinstance(padding, (list, tuple)) else [row, row]
    shape = [*weight_tensor.shape[:3], 1]
    weights = weight_tensor if len(weight_tensor.shape) == 4 else lookup("ttnn.reshape")(weight_tensor, shape)
    flat = lookup("ttnn.reshape")(input_tensor, [1, 1, batch_size * input_length, in_channels])
    return lookup("ttnn.conv2d")(
        input_tensor=flat, weight_tensor=weights, device=device, in_channels=in_channels, out_channels=out_channels,
        batch_size=batch_size, input_height=input_length, input_width=1, kernel_size=[kernel_size, 1],
        stride=[stride, 1], padding=[sides[0], sides[-1], 0, 0], dilation=[dilation, 1], groups=groups,
        bias_tensor=bias_tensor, dtype=dtype, memory_config=memory_config,
    )  # fmt: skip


# --- semaphores and traces -------------------------------------------------------------------------------------------


@dataclass
class Semaphore:
    """A stand-in for a semaphore of devices that compute in step."""

    value: Any


@composed()
def create_global_semaphore(mesh_device: Any, cores: Any, initial_value: Any) -> Any:
    """Returns a stand-in for a semaphore."""
    return Semaphore(initial_value)


@composed()
def reset_global_semaphore_value(global_semaphore: Any, reset_value: Any) -> None:
    """Sets the value of a semaphore."""
    what = "ttnn.reset_global_semaphore_value"
    as_instance(Semaphore, what, "global_semaphore", global_semaphore).value = reset_value
