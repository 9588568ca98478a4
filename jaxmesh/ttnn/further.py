"""Functions of `ttnn` computed on each device, without an op that jaxmesh prints."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

from jaxmesh.dialects.op import OpDef
from jaxmesh.tensor.execute import NO_ARGUMENTS, perform
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.tensor_base import TensorBase
from jaxmesh.tensor.types import ON_DEVICE
from jaxmesh.ttnn.call_arguments import HOW
from jaxmesh.ttnn.conversion import convert_operands, finish, finish_one, write_result
from jaxmesh.ttnn.functions import COMPOSED, TtnnFunction, op_function
from jaxmesh.ttnn.refusals import computing, results_of
from jaxmesh.ttnn.signatures import is_tensor


class Composed(TtnnFunction):
    """A function composed of others, callable as in `ttnn`; the arguments it does not know must be left out."""

    def __init__(self, callee: str, compute: Callable[..., Any], ignored: Sequence[str] = (), **also: str) -> None:
        super().__init__(callee, also)
        self.__doc__ = compute.__doc__
        self._compute = compute
        COMPOSED[callee] = self
        self._known = [n for n in (*inspect.signature(compute).parameters, *ignored) if n in self._slots]
        self._output = self._output_beside(self._known)
        self._others = [
            (n, i) for n, i in self._slots.items() if n not in self._known and n not in HOW and i != self._output
        ]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Performs the function; see `help` of it for its arguments."""
        values = self._binder.bind(args, kwargs)
        for name, slot in self._others:
            self._binder.check_default(name, values[slot])
        every = dict(zip(self._slots, values, strict=True))
        results = results_of(self.callee, every)
        given = {name: every[name] for name in self._known}
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


def on_each_device(
    callee: str | None = None,
    ignored: Sequence[str] = ("memory_config",),
    plain: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[[Callable[..., Any]], Any]:
    """Returns a decorator for a function that computes with the arrays of one device.

    Args:
      callee: the dotted name of the real function.
      ignored: parameters of the real function that do not change the elements.
      plain: the arguments with which the op of the same name computes the result.
    """

    def decorate(compute: Callable[..., Any]) -> Any:
        title = callee or f"ttnn.{compute.__name__.rstrip('_')}"

        def run(**given: Any) -> Any:
            if plain and all((given[n] or 0) == value for n, value in plain.items()):
                return op_function(title)(**{n: x for n, x in given.items() if n not in plain})
            return each(title, compute, {n: x for n, x in given.items() if n not in ignored})

        run.__doc__ = compute.__doc__
        return Composed(title, run, (*inspect.signature(compute).parameters, *ignored))

    return decorate


def each(title: str, compute: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Computes a function on each device, with its arrays in place of the tensors among the arguments."""
    tensors = {n: x for n, x in given.items() if is_tensor(x)}
    others = {n: x for n, x in given.items() if n not in tensors}

    def meaning(call: Any) -> Any:
        return compute(**others, **dict(zip(tensors, call.operands, strict=True)))

    name, count = f"{title.removeprefix('ttnn.')} {others!r} {list(tensors)}", len(tensors)
    definition = OpDef("ttnn", name, (count, count), (), meaning)
    operands = list(tensors.values())
    storage = next((t.storage for t in operands if isinstance(t, MeshTensor)), ON_DEVICE)
    return perform(definition, title, operands, NO_ARGUMENTS, None, storage)[0]


_jnp: Any = jax.numpy
_lax: Any = jax.lax
_STORED = ("dtype", "memory_config")


# --- elementwise -----------------------------------------------------------------------------------------------------


@on_each_device(ignored=_STORED)
def cumprod(input_tensor: Any, dim: Any, reverse_order: Any) -> Any:
    """Computes the product of the elements up to each element along a dim."""
    x = input_tensor
    return _lax.cumprod(x, dim % x.ndim, reverse=bool(reverse_order)) if x.ndim else x


@composed()
def cumsum(input: Any, dim: Any, dtype: Any, reverse_order: Any, memory_config: Any) -> Any:  # noqa: A002
    """Adds the elements up to each one along a dim, or from each one on."""
    if not input.shape:
        return input
    if not reverse_order:
        return op_function("ttnn.cumsum")(input, dim, dtype=dtype, memory_config=memory_config)

    def compute(x: Any, dim: Any) -> Any:
        return _lax.cumsum(x, dim % x.ndim, reverse=True)

    return each("ttnn.cumsum", compute, {"x": input, "dim": dim})


@on_each_device(plain={"decimals": 0})
def round_(input_tensor: Any, decimals: Any) -> Any:
    """Rounds to a number of decimals, halves to even."""
    return _jnp.round(input_tensor, decimals)


@on_each_device(plain={"beta": 1, "threshold": 20})
def softplus(input_tensor: Any, beta: Any, threshold: Any) -> Any:
    """Computes log(1 + exp(beta * x)) / beta; x itself where beta * x is above the threshold."""
    x = input_tensor
    return _jnp.where(x * beta > threshold, x, jax.nn.softplus(x * beta) / beta).astype(x.dtype)


# At its defaults in the library.
@on_each_device(plain={"scale": 1.0506999492645264, "alpha": 1.673259973526001})
def selu(input_tensor: Any, scale: Any, alpha: Any) -> Any:
    """Computes scaled elements; an element x below zero is alpha * (exp(x) - 1) first."""
    x = input_tensor
    return (scale * _jnp.where(x > 0, x, alpha * _jnp.expm1(x))).astype(x.dtype)


def _whole(x: Any) -> Any:
    return _jnp.clip(_jnp.round(x), -128, 127).astype(_jnp.int32)


@on_each_device(ignored=_STORED)
def quantize(input_tensor: Any, scale: Any, zero_point: Any, axis: Any) -> Any:
    """Computes x / scale + zero point, rounded to whole numbers of 8 bits."""
    scale, zero = _along(input_tensor, axis, scale, zero_point)
    return _whole(input_tensor / scale + zero)


@on_each_device(ignored=_STORED)
def dequantize(input_tensor: Any, scale: Any, zero_point: Any, axis: Any) -> Any:
    """Computes (x - zero point) * scale."""
    scale, zero = _along(input_tensor, axis, scale, zero_point)
    return (input_tensor.astype(_jnp.float32) - zero) * scale


@on_each_device(ignored=_STORED)
def requantize(
    input_tensor: Any, in_scale: Any, in_zero_point: Any, out_scale: Any, out_zero_point: Any, axis: Any
) -> Any:
    """Converts quantized numbers from one scale to another."""
    given = in_scale, in_zero_point, out_scale, out_zero_point
    in_scale, in_zero, out_scale, out_zero = _along(input_tensor, axis, *given)
    value = (input_tensor.astype(_jnp.float32) - in_zero) * in_scale
    return _whole(value / out_scale + out_zero)


def _along(x: Any, axis: Any, *given: Any) -> list[Any]:
    """Returns numbers, and arrays of one number or of one for each place of an axis, in shapes that broadcast."""
    shape = [-1 if axis is not None and d == axis % x.ndim else 1 for d in range(x.ndim)]
    return [g.reshape(shape) if isinstance(g, jax.Array) else g for g in given]


@on_each_device("ttnn.experimental.dropout")
def dropout(input_tensor: Any, probability: Any, scale: Any, seed: Any, use_per_device_seed: Any) -> Any:
    """Sets elements to zero at random and scales the others; JAX's random numbers are not the library's."""
    # With a seed per device, every device draws the same numbers here; the real ones differ between devices.
    key = jax.random.key(seed + 1 if use_per_device_seed else seed)
    kept = jax.random.bernoulli(key, 1.0 - probability, input_tensor.shape)
    return _jnp.where(kept, input_tensor * scale, 0).astype(input_tensor.dtype)


# --- heads -----------------------------------------------------------------------------------------------------------


@on_each_device("ttnn.experimental.nlp_concat_heads")
def nlp_concat_heads(input_tensor: Any) -> Any:
    """Joins heads: [batch, heads, length, width] becomes [batch, 1, length, heads * width]."""
    batch, heads, length, width = input_tensor.shape
    return _jnp.moveaxis(input_tensor, 1, 2).reshape(batch, 1, length, heads * width)


@on_each_device(ignored=(*_STORED, "inplace", "output_layout"))
def group_norm(input_tensor: Any, num_groups: Any, epsilon: Any, weight: Any, bias: Any) -> Any:
    """Normalises groups of channels of [batch, 1, pixels, channels]; weight and bias have one number per channel."""
    batch, one, pixels, channels = input_tensor.shape
    grouped = input_tensor.astype(_jnp.float32).reshape(batch, one * pixels, num_groups, channels // num_groups)
    mean = grouped.mean((1, 3), keepdims=True)
    variance = grouped.var((1, 3), keepdims=True)
    out = ((grouped - mean) * _lax.rsqrt(variance + epsilon)).reshape(input_tensor.shape)
    return _scale_and_shift(out, weight, bias).astype(input_tensor.dtype)


def _scale_and_shift(x: Any, weight: Any, bias: Any) -> Any:
    """Returns rows times the weight of a norm, plus its bias, with one number per element of a row."""
    rows = [None if p is None else p.reshape(-1)[: x.shape[-1]].astype(_jnp.float32) for p in (weight, bias)]
    x = x if rows[0] is None else x * rows[0]
    return x if rows[1] is None else x + rows[1]


# --- norms of rows that are split over devices, and rotations --------------------------------------------------------


@on_each_device(ignored=_STORED)
def rms_norm_pre_all_gather(input_tensor: Any, residual_input_tensor: Any) -> Any:
    """Sums the squares of each row: the first element of a tile, whose others are zero."""
    row = _with_residual(input_tensor, residual_input_tensor)
    return _sums(row * row)


@on_each_device(ignored=_STORED)
def layer_norm_pre_all_gather(input_tensor: Any, residual_input_tensor: Any) -> Any:
    """Sums the squares of each row, and the row: the first elements of two tiles, whose others are zero."""
    row = _with_residual(input_tensor, residual_input_tensor)
    return _jnp.concatenate([_sums(row * row), _sums(row)], -1)


def _with_residual(x: Any, residual: Any) -> Any:
    row = x.astype(_jnp.float32)
    return row if residual is None else row + residual.astype(_jnp.float32)


def _sums(x: Any) -> Any:
    return _jnp.pad(x.sum(-1, keepdims=True), [(0, 0)] * (x.ndim - 1) + [(0, 31)])


@on_each_device(ignored=_STORED)
def layer_norm_post_all_gather(input_tensor: Any, stats: Any, epsilon: Any, weight: Any, bias: Any) -> Any:
    """Normalises rows by the sums of all devices, which `ttnn.all_gather` joined along the last dim."""
    row, width = input_tensor.astype(_jnp.float32), input_tensor.shape[-1]
    devices = stats.shape[-1] // 64
    total = stats.astype(_jnp.float32).reshape(*stats.shape[:-1], devices, 2, 32)[..., 0].sum(-2)
    square, mean = (total[..., i, None] / (devices * width) for i in (0, 1))
    return _scale_and_shift((row - mean) * _lax.rsqrt(square - mean * mean + epsilon), weight, bias)


@on_each_device("ttnn.experimental.rotary_embedding_llama")
def rotary_embedding_llama(input_tensor: Any, cos_cache: Any, sin_cache: Any, trans_mat: Any) -> Any:
    """Computes rotated pairs of elements: x * cos + (x @ trans_mat) * sin, with one matrix for every 32 elements."""
    batch, heads, length, width = input_tensor.shape
    row = _jnp.pad(input_tensor.astype(_jnp.float32), ((0, 0), (0, 0), (0, 0), (0, -width % 32)))
    turned = row.reshape(batch, heads, length, -1, 32) @ trans_mat[0, 0].astype(_jnp.float32)
    turned = turned.reshape(row.shape)[..., :width]
    cos, sin = (t[:, :, :length].astype(_jnp.float32) for t in (cos_cache, sin_cache))
    return (row[..., :width] * cos + turned * sin).astype(input_tensor.dtype)


# --- attention to caches of pages, and to keys that hold the values ---------------------------------------------------

# A cache is [pages, heads, page size, width]; row `u` of a page table names the pages of user `u`, in order.


def _users(cache: Any, table: Any) -> Any:
    """Returns the cache of each user, [users, heads, positions, width]."""
    found = _jnp.moveaxis(cache[table], 2, 1)
    return found.reshape(*found.shape[:2], -1, found.shape[-1])


def _attend(q: Any, k: Any, v: Any, scale: Any, seen: Any = None, mask: Any = None) -> Any:
    """Computes attention of queries [users, heads, length, width]; `seen` is True where a query sees a key."""
    groups = q.shape[1] // k.shape[1]
    keys, values = (_jnp.repeat(t, groups, axis=1).astype(_jnp.float32) for t in (k, v))
    scores = _jnp.einsum("bhqd,bhkd->bhqk", q.astype(_jnp.float32), keys)
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if mask is None else scores + mask.astype(_jnp.float32)
    scores = scores if seen is None else _jnp.where(seen, scores, -_jnp.inf)
    return _jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), values).astype(q.dtype)


@composed("ttnn.experimental.paged_fill_cache")
def paged_fill_cache(cache_tensor: Any, input_tensor: Any, page_table: Any, batch_idx: Any) -> Any:
    """Writes [1, heads, length, width] into the pages of one user."""
    title = "ttnn.experimental.paged_fill_cache"

    def compute(cache: Any, x: Any, table: Any, user: int) -> Any:
        places = _jnp.arange(x.shape[2])
        pages = table[user, places // cache.shape[2]]
        return cache.at[pages, :, places % cache.shape[2]].set(_jnp.moveaxis(x[0], 1, 0))

    given = {"cache": cache_tensor, "x": input_tensor, "table": page_table, "user": batch_idx}
    return write_result(title, cache_tensor, each(title, compute, given))


def _decode(q: Any, keys: Any, values: Any, last: Any, mask: Any, scale: Any) -> Any:
    """Computes attention of one position of each user, [1, users, heads, width]; `last` are the last keys seen."""
    seen = None if last is None else _jnp.arange(keys.shape[2]) <= last.reshape(-1, 1, 1, 1)
    # A mask is [users, 1, heads, positions].
    mask = None if mask is None else _jnp.moveaxis(mask, 2, 1)
    return _attend(q[0][:, :, None], keys, values, scale, seen, mask)[None, :, :, 0]


@on_each_device("ttnn.transformer.paged_scaled_dot_product_attention_decode")
def paged_scaled_dot_product_attention_decode(
    input_tensor_q: Any, input_tensor_k: Any, input_tensor_v: Any, page_table_tensor: Any, is_causal: Any,
    attn_mask: Any, cur_pos_tensor: Any, scale: Any,
) -> Any:  # fmt: skip
    """Computes attention of one position of each user, [1, users, heads, width], to the user's pages."""
    keys, values = _users(input_tensor_k, page_table_tensor), _users(input_tensor_v, page_table_tensor)
    return _decode(input_tensor_q, keys, values, cur_pos_tensor if is_causal else None, attn_mask, scale)


@on_each_device("ttnn.transformer.scaled_dot_product_attention_decode", ignored=())
def scaled_dot_product_attention_decode(
    input_tensor_q: Any, input_tensor_k: Any, input_tensor_v: Any, is_causal: Any, attn_mask: Any, cur_pos: Any,
    cur_pos_tensor: Any, scale: Any,
) -> Any:  # fmt: skip
    """Computes attention of one position, [1, users, heads, width], to a cache, [users, kv heads, length, width]."""
    places = _jnp.asarray(cur_pos if cur_pos_tensor is None else cur_pos_tensor, _jnp.int32).reshape(-1)
    last = places[: input_tensor_k.shape[0]] if is_causal else None
    return _decode(input_tensor_q, input_tensor_k, input_tensor_v, last, attn_mask, scale)


@on_each_device("ttnn.transformer.chunked_scaled_dot_product_attention")
def chunked_scaled_dot_product_attention(
    input_tensor_q: Any, input_tensor_k: Any, input_tensor_v: Any, page_table_tensor: Any, chunk_start_idx: Any,
    scale: Any,
) -> Any:  # fmt: skip
    """Computes attention of a chunk of positions, [users, heads, length, width], to the pages up to each position."""
    keys, values = _users(input_tensor_k, page_table_tensor), _users(input_tensor_v, page_table_tensor)
    seen = _jnp.arange(keys.shape[2])[None] <= chunk_start_idx + _jnp.arange(input_tensor_q.shape[2])[:, None]
    return _attend(input_tensor_q, keys, values, scale, seen)


@on_each_device("ttnn.transformer.flash_mla_prefill")
def flash_mla_prefill(
    input_tensor_q: Any, input_tensor_k: Any, head_dim_v: Any, input_tensor_v: Any, attn_mask: Any, is_causal: Any,
    scale: Any,
) -> Any:  # fmt: skip
    """Computes attention to keys whose first `head_dim_v` elements are the values, or to separate values."""
    values = input_tensor_k[..., :head_dim_v] if input_tensor_v is None else input_tensor_v
    length, keys = input_tensor_q.shape[2], input_tensor_k.shape[2]
    seen = _jnp.tril(_jnp.ones((length, keys), bool)) if is_causal else None
    return _attend(input_tensor_q, input_tensor_k, values, scale, seen, attn_mask)
