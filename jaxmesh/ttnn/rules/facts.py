"""Refusals of single functions that hang on sizes, layouts and element types of several tensors, one a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

from jaxmesh.dialects.ttnn.forms import FLOATS, I8, U8, U16, WHOLE
from jaxmesh.ttnn.rules.given import Form, Given

Fact = tuple[Callable[[Given], object], str, str]
"""What must hold of a call, in our words, and what the library says otherwise."""


def check(given: Given) -> None:
    """Refuses a call that breaks a fact."""
    for good, rule, real in FACTS.get(given.callee, ()):
        given.require(bool(good(given)), rule, real)


def _x(given: Given) -> Form:
    return given.tensors()[0]


def _forms(given: Given, *names: str) -> Iterator[Form]:
    return (given[name] for name in names if isinstance(given[name], Form))


def _tiles(size: int) -> int:
    return -(-size // 32)


def _width(form: Form) -> int:
    return (1, *form.shape)[-1]


def _scales(given: Given, form: Form) -> bool:
    """Returns True for parameters of a norm as wide as its rows: tiles, or rows of 32 elements."""
    x = _x(given)
    if form.is_tile:
        return form.shape[-1:] >= (_width(x),) and _tiles(_width(form)) == _tiles(_width(x))
    whole = form.shape[-1:] == (32,) and prod(form.shape) // 32 == _tiles(_width(x))
    return whole and form.dtype in FLOATS


def adds_any(given: Given) -> bool:
    """Returns True for a sum over devices that the library computes of any element type: by whole tiles for each."""
    if given.callee not in _SUMS:
        return False
    axis: int | None = given["cluster_axis"]
    dim: int | None = given["dim"]
    x = _x(given)
    count = prod(x.mesh) if axis is None else x.mesh[axis]
    rank = len(x.shape)
    parts = [n % (count if d < rank - 2 else 32 * count) == 0 for d, n in enumerate(x.shape)]
    return x.is_tile and (any(parts) if dim is None else parts[dim])


_SUMS = frozenset({"ttnn.all_reduce", "ttnn.experimental.all_reduce_async", "ttnn.reduce_scatter"})


def _is_small(power: object) -> bool:
    return not isinstance(power, (int, float)) or power < 2


_NORM: Sequence[Fact] = (
    (lambda g: _x(g).is_tile or _width(_x(g)) % 32 == 0,
     "takes ROW_MAJOR rows of whole tiles", "ROW_MAJOR input requires W to be a multiple of tile width"),
    (lambda g: _x(g).is_empty or all(_scales(g, f) for f in _forms(g, "weight", "bias")),
     "takes a weight and a bias as wide as its rows, in TILE layout or in rows of 32 elements",
     "gamma.padded_shape()[-1] == tile_width"),
)  # fmt: skip
_CAUSAL: Sequence[Fact] = (
    (lambda g: not g["is_causal"] or g["input_tensor_q"].shape[2] == g["input_tensor_k"].shape[2],
     "takes queries and keys of one length if it is causal", "Causal SDPA requires Q and K to have the same length"),
    (lambda g: not g["is_causal"] or g["attn_mask"] is None,
     "takes no mask if it is causal", "attn_mask must not be provided"),
)  # fmt: skip
FACTS: Mapping[str, Sequence[Fact]] = {
    **dict.fromkeys(("ttnn.layer_norm", "ttnn.rms_norm"), _NORM),
    "ttnn.gelu_bw": (
        (lambda g: len({f.layout for f in g.tensors()[:2]}) == 1,
         "takes tensors of one layout", "grad_output.layout() == input.layout()"),
    ),
    "ttnn.pow": (
        (lambda g: _x(g).is_tile or _x(g).dtype not in WHOLE or all(map(_is_small, list(g.values.values())[1:2])),
         "takes powers of integers above 1 in TILE layout; use ttnn.to_layout", "input must be in TILE layout"),
    ),
    "ttnn.clamp": (
        (lambda g: len(g.tensors()) != 2 or any(form.is_tile for form in g.tensors()),
         "takes one bound of TILE layout; use ttnn.to_layout", "Ternary operation requires Tile layout"),
        (lambda g: len(g.tensors()) != 2 or not _x(g).is_empty,
         "takes one bound of tensors with elements only", "Broadcasting rule violation at dimension"),
    ),
    "ttnn.where": (
        (lambda g: len(g.tensors()) < 3 or not _x(g).is_empty,
         "takes three tensors with elements only", "Broadcasting rule violation at dimension"),
        (lambda g: len(g.tensors()) < 3 or _x(g).is_tile,
         "takes a condition in TILE layout beside two tensors; use ttnn.to_layout", "input must be in TILE layout"),
    ),
    "ttnn.transformer.scaled_dot_product_attention": _CAUSAL,
    "ttnn.fill_cache": (
        (lambda g: len({f.dtype for f in g.tensors()[:2]}) == 1,
         "takes a tensor of the cache's element type", "input_tensor.dtype() == cache_tensor.dtype()"),
    ),
    "ttnn.batch_norm": (
        (lambda g: len({f.dtype for f in g.tensors()[1:]}) < 2,
         "takes parameters of one element type; use ttnn.typecast", "must match other parameter tensors dtype"),
    ),
    "ttnn.transpose": (
        (lambda g: len(_x(g).shape) != 1 or not _x(g).is_tile or _x(g).shape == (1,),
         "takes two dims at least in TILE layout", "Can't convert shape rank"),
    ),
    "ttnn.repeat": (
        (lambda g: g["repeat_dims"] or _x(g).shape,
         "takes tensors of one dim at least", "working_tensor.logical_shape().rank() > 0"),
    ),
    "ttnn.repeat_interleave": (
        (lambda g: len(_x(g).shape) != 1 or _x(g).dtype not in (I8, U8, U16),
         "takes no narrow integers of one dim", "input_tensor_a.dtype() == DataType::BFLOAT16"),
    ),
}  # fmt: skip
"""By the dotted name of the function."""
