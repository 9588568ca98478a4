"""Rules of products, normalisations, attention and caches."""

from __future__ import annotations

from collections.abc import Mapping

from jaxmesh.dialects.ttnn.forms import B8, BF16, F32, FLOATS, NARROW, NOT_I8
from jaxmesh.ttnn.rules.given import TILE, Given, Result, Rule, like

_MODEL = frozenset({F32, BF16, B8})


def _rotary(given: Given) -> list[Result]:
    x, cos, sin = given.tensors()[:3]
    given.on_devices(x, cos, sin)
    for form in (x, cos, sin):
        narrow = form.dtype in NARROW and not form.is_tile
        given.require(not narrow, f"does not tilize {form.dtype}", "unsupported data type for tilize")
        given.types(form, NOT_I8)
    given.require(cos.dtype == sin.dtype, "takes caches of one element type", "Cos and Sin dtypes must match")
    given.require(len(x.shape) == 4, "takes four dims", "index out of range. 3 not in")
    length, width = x.shape[2:]
    tiles = -(-width // 32)
    halves = tiles == 1 or tiles % 2 == 0
    given.require(halves, f"halves rows of whole tiles, not of {width} elements", "Input X dimension must be either 32")
    for form in (cos, sin):
        good = len(form.shape) == 4 and form.shape[:2] == (1, 1) and -(-form.shape[3] // 32) == tiles
        given.require(
            good, "takes caches of [1, 1, rows, width]", "Cosine cache dimensions must match input dimensions"
        )
    good = min(cos.shape[2], sin.shape[2]) >= length
    given.require(good, f"takes caches of {length} rows at least", "Cosine cache must cover the input sequence length")
    return [Result(x.dtype, TILE, F32)]


def _norm(given: Given) -> list[Result]:
    x = given["input_tensor"]
    given.on_devices(*given.tensors())
    if given.callee == "ttnn.rms_norm":
        given.tiles(x)
    if not x.is_empty:
        given.types(x, _MODEL)
    return like(x)


def _batch_norm(given: Given) -> list[Result]:
    given.on_devices(*given.tensors())
    for form in given.tensors():
        if form.shape and not form.is_empty:
            given.tiles(form)
        given.types(form, FLOATS)
    return like(given.tensors()[0])


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("ttnn.layer_norm", "ttnn.rms_norm"), _norm),
    "ttnn.batch_norm": _batch_norm,
    "ttnn.experimental.rotary_embedding": _rotary,
}  # fmt: skip
