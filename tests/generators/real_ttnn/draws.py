"""Draws random calls of the functions of `ttnn`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from jaxmesh.ttnn.rules import elementwise
from jaxmesh.ttnn.signatures import NEEDED, signatures
from tests.generators.real_ttnn.calls import MESH, Job

DTYPES = ("float32", "bfloat16", "int32", "uint32", "uint16", "uint8", "int8", "bfloat8_b")
COMMON = (*DTYPES, "float32", "bfloat16", "float32", "bfloat16", "int32", "bfloat8_b")
"""The element types as often as they are drawn: most functions take floats alone."""

LAYOUTS = ("TILE", "ROW_MAJOR")
Draw = Callable[["Calls"], tuple[list[Any], dict[str, Any]]]


class Calls:
    """Draws calls of one function."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        # Most calls are of one element type and layout, as programs are.
        self.dtype, self.layout = rng.choice(COMMON), rng.choice(LAYOUTS)
        self.mixed, self.empty = rng.random() < 0.2, rng.random() < 0.03
        self.place = rng.choice(["device"] * 8 + ["host", "sharded"])

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def shape(self, least: int = 0, most: int = 5) -> list[int]:
        rank = self.rng.randint(least, most)
        sizes = [
            self.rng.choice([1, 2, 3, 5, 8, 32, 33, 64]) if i >= rank - 2 else self.rng.choice([1, 2, 3])
            for i in range(rank)
        ]
        if sizes and self.empty:
            sizes[self.rng.randrange(rank)] = 0
        return sizes

    def tensor(self, shape: Sequence[int], dtype: str | None = None, layout: str | None = None) -> Any:
        if self.mixed:
            self.dtype = self.rng.choice(DTYPES) if self.chance(0.5) else self.dtype
            self.layout = self.rng.choice(LAYOUTS) if self.chance(0.5) else self.layout
        place = self.place if self.chance(0.8) else "device"
        place = "host" if self.chance(0.02) else place
        kind = dtype or self.dtype
        # A block float is tiled always.
        return {"tensor": [list(shape), kind, "TILE" if kind == "bfloat8_b" else layout or self.layout, place]}

    def some(self, dtype: str, p: float = 0.85) -> str | None:
        """Returns an element type that the function wants, most of the time."""
        return dtype if self.chance(p) else None

    def x(self, least: int = 0, most: int = 5) -> Any:
        return self.tensor(self.shape(least, most))

    def dim(self, rank: int) -> int:
        return self.rng.randrange(-rank, rank) if rank and self.chance(0.95) else self.rng.randint(-6, 6)

    def options(self, *names: str) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name in names:
            if name == "dtype" and self.chance(0.2):
                out["dtype"] = {"name": f"ttnn.{self.rng.choice(DTYPES)}"}
            if name == "memory_config" and self.chance(0.3):
                out["memory_config"] = {"name": f"ttnn.{self.rng.choice(['DRAM', 'L1'])}_MEMORY_CONFIG"}
            if name == "layout" and self.chance(0.5):
                out["layout"] = {"name": f"ttnn.{self.rng.choice(LAYOUTS)}_LAYOUT"}
        return out

    def broadcast(self, shape: Sequence[int]) -> list[int]:
        """Returns a shape that broadcasts with another, most of the time."""
        new = [1 if self.chance(0.2) else n for n in shape]
        if new and self.chance(0.15):
            new = new[self.rng.randint(0, len(new)) :]
        if new and self.chance(0.05):
            new[self.rng.randrange(len(new))] += 1
        return new

    def number(self) -> Any:
        return self.rng.choice([0, 1, 2, -1, 0.5, 2.0, -3.5, 3])


def unary(c: Calls) -> Any:
    return [c.x()], c.options("memory_config")


def binary(c: Calls) -> Any:
    shape = c.shape()
    other = c.number() if c.chance(0.2) else c.tensor(c.broadcast(shape))
    return [c.tensor(shape), other], c.options("memory_config")


def binary_typed(c: Calls) -> Any:
    args, _ = binary(c)
    return args, c.options("memory_config", "dtype")


def backward(c: Calls) -> Any:
    shape = c.shape()
    return [c.tensor(shape), c.tensor(shape)], c.options("memory_config")


def where(c: Calls) -> Any:
    shape = c.shape()
    values = [c.number() if c.chance(0.2) else c.tensor(c.broadcast(shape)) for _ in range(2)]
    return [c.tensor(shape), *values], c.options("memory_config")


def with_number(name: str | None, positional: bool = False) -> Draw:
    def draw(c: Calls) -> Any:
        value = c.rng.choice([0.5, 1.0, 2])
        return [c.x(), *([value] if positional else [])], {} if positional or name is None else {name: value}

    return draw


def clamp(c: Calls) -> Any:
    shape = c.shape()
    if c.chance(0.3):
        return [c.tensor(shape), c.tensor(c.broadcast(shape)), c.tensor(c.broadcast(shape))], {}
    return [c.tensor(shape), c.rng.choice([None, -1, -1.5, 0.0]), c.rng.choice([None, 1, 2.5, 3.0])], c.options(
        "memory_config"
    )


def typecast(c: Calls) -> Any:
    return [c.x(), {"name": f"ttnn.{c.rng.choice(DTYPES)}"}], c.options("memory_config")


def reduction(c: Calls) -> Any:
    shape = c.shape()
    args: list[Any] = [c.tensor(shape)]
    if c.chance(0.75):
        rank = len(shape)
        several = sorted(c.rng.sample(range(rank), c.rng.randint(1, rank))) if rank else []
        args.append(c.dim(rank) if c.chance(0.6) else several)
        if c.chance(0.5):
            args.append(c.chance(0.7))
    return args, c.options("memory_config")


def one_dim(c: Calls) -> Any:
    shape = c.shape()
    args: list[Any] = [c.tensor(shape)]
    if c.chance(0.8):
        args.append(c.dim(len(shape)))
        if c.chance(0.5):
            args.append(c.chance(0.7))
    return args, c.options("memory_config")


def scan(c: Calls) -> Any:
    shape = c.shape()
    return [c.tensor(shape), c.dim(len(shape))], c.options("memory_config", "dtype")


def softmax(c: Calls) -> Any:
    shape = c.shape()
    return [c.tensor(shape), c.dim(len(shape))], {
        **c.options("memory_config"),
        **({"numeric_stable": True} if c.chance(0.3) else {}),
    }


def sort(c: Calls) -> Any:
    shape = c.shape()
    return [c.tensor(shape), c.dim(len(shape))], {"descending": True} if c.chance(0.3) else {}


def topk(c: Calls) -> Any:
    shape = c.shape(1)
    shape[-1] = c.rng.choice([shape[-1], 32, 64, 128])
    dim = c.dim(len(shape)) if c.chance(0.3) else -1
    return [c.tensor(shape), c.rng.choice([1, 2, 8, 32]), dim], {}


def matmul(c: Calls) -> Any:
    m, k, n = (c.rng.choice([1, 3, 32, 40, 64]) for _ in range(3))
    batch = [c.rng.choice([1, 2]) for _ in range(c.rng.choice([0, 0, 1, 2, 3]))]
    a, b = [*batch, m, k], [*(batch if c.chance(0.5) else []), k, n]
    if c.chance(0.1):
        a = [k]
    if c.chance(0.1):
        b = [k]
    if c.chance(0.04):
        b = [*b[:-1], b[-1] + 1] if len(b) == 1 else [*b[:-2], b[-2] + 1, b[-1]]
    kwargs = c.options("memory_config", "dtype")
    if c.chance(0.2) and len(a) > 1:
        a, kwargs["transpose_a"] = [*a[:-2], a[-1], a[-2]], True
    if c.chance(0.2) and len(b) > 1:
        b, kwargs["transpose_b"] = [*b[:-2], b[-1], b[-2]], True
    return [c.tensor(a), c.tensor(b)], kwargs


def linear(c: Calls) -> Any:
    args, kwargs = matmul(c)
    if c.chance(0.6):
        b = args[1]["tensor"][0]
        n = b[-2] if kwargs.get("transpose_b") and len(b) > 1 else b[-1]
        kwargs["bias"] = c.tensor([n] if c.chance(0.5) else [1, n])
    return args, kwargs


def reshape(c: Calls) -> Any:
    shape = c.shape()
    size = 1
    for n in shape:
        size *= n
    new: list[int] = []
    rest = size
    for _ in range(c.rng.randint(0, 4)):
        part = c.rng.choice([d for d in (1, 2, 3, 4, 8, 32, 33) if rest % d == 0])
        new.append(part)
        rest //= part
    new.append(rest)
    c.rng.shuffle(new)
    if c.chance(0.3):
        new[c.rng.randrange(len(new))] = -1
    if c.chance(0.04):
        new = [7]
    return [c.tensor(shape), new], c.options("memory_config")


def permute(c: Calls) -> Any:
    shape = c.shape()
    order = list(range(len(shape)))
    c.rng.shuffle(order)
    if c.chance(0.04):
        order = order[1:]
    return [c.tensor(shape), order], c.options("memory_config")


def transpose(c: Calls) -> Any:
    shape = c.shape()
    return [c.tensor(shape), c.dim(len(shape)), c.dim(len(shape))], c.options("memory_config")


def repeat(c: Calls) -> Any:
    shape = c.shape()
    counts = [c.rng.choice([1, 1, 2, 3]) for _ in range(len(shape) + (1 if c.chance(0.1) else 0))]
    return [c.tensor(shape), counts], c.options("memory_config")


def repeat_interleave(c: Calls) -> Any:
    shape = c.shape()
    return [c.tensor(shape), c.rng.choice([1, 2, 3]), c.dim(len(shape))], c.options("memory_config")


def concat(c: Calls) -> Any:
    shape = c.shape()
    dim = c.dim(len(shape))
    tensors: list[Any] = []
    for _ in range(c.rng.randint(1, 3)):
        own = list(shape)
        if own and -len(own) <= dim < len(own) and c.chance(0.4):
            own[dim] = c.rng.choice([1, 2, 32])
        tensors.append(c.tensor(own))
    return [tensors, dim], c.options("memory_config")


def slice_(c: Calls) -> Any:
    shape = c.shape()
    starts = [c.rng.randrange(n) if n and c.chance(0.4) else 0 for n in shape]
    ends = [c.rng.randint(s + 1, n) if n and c.chance(0.5) else n for s, n in zip(starts, shape, strict=True)]
    args: list[Any] = [c.tensor(shape), starts, ends]
    if c.chance(0.6):
        args.append([c.rng.choice([1, 1, 1, 2]) for _ in shape])
    return args, c.options("memory_config")


def pad(c: Calls) -> Any:
    shape = c.shape()
    pairs = [[c.rng.choice([0, 0, 0, 1, 32]), c.rng.choice([0, 0, 1, 31])] for _ in shape]
    if c.chance(0.5):
        pairs = [[0, b] for _, b in pairs]
    return [c.tensor(shape), [{"tuple": p} for p in pairs], c.rng.choice([0.0, 1, 0])], c.options("memory_config")


def created(c: Calls) -> Any:
    kwargs: dict[str, Any] = {"shape": c.shape(0, 5)}
    return [], {
        **kwargs,
        **c.options("dtype", "layout", "memory_config"),
        **({"device": {"name": "device"}} if c.chance(0.7) else {}),
    }


def full(c: Calls) -> Any:
    _, kwargs = created(c)
    return [], {**kwargs, "fill_value": c.number()}


def empty(c: Calls) -> Any:
    _, kwargs = created(c)
    return [], kwargs


def arange(c: Calls) -> Any:
    args = c.rng.choice([[0, 10, 1], [2, 40, 3], [10], [0, 5], [5, 0, -1]])
    kwargs = c.options("dtype", "layout")
    return args, {**kwargs, **({"device": {"name": "device"}} if c.chance(0.7) else {})}


def rand(c: Calls) -> Any:
    return [{"shape": c.shape(1, 4)}, {"name": "device"}], c.options("dtype", "layout", "memory_config")


def embedding(c: Calls) -> Any:
    rows, width = c.rng.choice([8, 32, 64]), c.rng.choice([16, 32, 64])
    index = c.tensor(
        c.rng.choice([[4], [2, 32], [1, 8], [1, 1, 8]]), c.some("uint32"), "ROW_MAJOR" if c.chance(0.6) else None
    )
    weight = c.tensor([rows, width], c.some("bfloat16"))
    return [index, weight], c.options("dtype", "layout", "memory_config")


def embedding_bw(c: Calls) -> Any:
    rows, width = 32, c.rng.choice([32, 64])
    index = c.tensor([2, 32], c.some("uint32"), "ROW_MAJOR" if c.chance(0.7) else None)
    grad = c.tensor([1, 1, 64, width], c.some("bfloat16"), "TILE" if c.chance(0.7) else None)
    return [index, c.tensor([rows, width], c.some("bfloat16")), grad], c.options("dtype", "memory_config")


def gather(c: Calls) -> Any:
    shape = c.shape()
    dim = c.dim(len(shape))
    index = [c.rng.randint(1, n) if n and c.chance(0.3) else n for n in shape]
    return [c.tensor(shape), dim, c.tensor(index, c.some(c.rng.choice(["uint32", "uint16"])))], {}


def scatter(c: Calls) -> Any:
    shape = c.shape()
    dim = c.dim(len(shape))
    part = [c.rng.randint(1, n) if n and c.chance(0.2) else n for n in shape]
    kwargs = {"reduce": c.rng.choice(["add", "multiply", "amax", "amin"])} if c.chance(0.3) else {}
    return [
        c.tensor(shape),
        dim,
        c.tensor(part, c.some(c.rng.choice(["uint32", "int32", "uint16"]))),
        c.tensor(part),
    ], kwargs


def layer_norm(c: Calls) -> Any:
    shape = c.shape(1)
    kwargs = c.options("memory_config")
    for name in ("weight", "bias"):
        if c.chance(0.6):
            kwargs[name] = c.tensor([shape[-1]] if c.chance(0.7) else [1, shape[-1]])
    return [c.tensor(shape)], kwargs


def batch_norm(c: Calls) -> Any:
    shape = [c.rng.choice([1, 2]), c.rng.choice([3, 32]), c.rng.choice([4, 32]), c.rng.choice([5, 32])]
    per = [1, shape[1], 1, 1]
    kwargs = {n: c.tensor(per) for n in ("running_mean", "running_var", "weight", "bias") if c.chance(0.85)}
    return [c.tensor(shape)], kwargs


def attention(c: Calls) -> Any:
    batch, heads, q, width = (
        c.rng.choice([1, 2]),
        c.rng.choice([1, 4]),
        c.rng.choice([32, 64, 40]),
        c.rng.choice([32, 64]),
    )
    kv = [batch, c.rng.choice([1, heads]), q if c.chance(0.7) else 64, width]
    kwargs: dict[str, Any] = {"is_causal": c.chance(0.5)}
    if not kwargs["is_causal"] and c.chance(0.4):
        kwargs["attn_mask"] = c.tensor([batch, 1, q, kv[2]])
    return [c.tensor([batch, heads, q, width]), c.tensor(kv), c.tensor(kv)], kwargs


def concatenate_heads(c: Calls) -> Any:
    return [
        c.tensor([c.rng.choice([1, 2]), c.rng.choice([1, 4]), c.rng.choice([32, 40]), c.rng.choice([32, 64, 20])])
    ], {}


def split_heads(c: Calls) -> Any:
    heads, width = c.rng.choice([2, 4]), c.rng.choice([32, 64])
    return [c.tensor([c.rng.choice([1, 2]), c.rng.choice([32, 64]), 3 * heads * width])], {
        "num_heads": heads,
        "transpose_key": c.chance(0.5),
    }


def rotary(c: Calls) -> Any:
    length, width = c.rng.choice([32, 64]), c.rng.choice([64, 128])
    cache = [1, 1, length, width]
    return [c.tensor([1, c.rng.choice([1, 4]), length, width]), c.tensor(cache), c.tensor(cache)], {}


def cache_fill(c: Calls) -> Any:
    cache = [c.rng.choice([1, 2]), 2, 64, 32]
    return [c.tensor(cache), c.tensor([1, 2, c.rng.choice([32, 64]), 32]), c.rng.randrange(cache[0])], {}


def cache_update(c: Calls) -> Any:
    cache = [2, 1, 64, 32]
    return [c.tensor(cache), c.tensor([1, 1, c.rng.choice([2, 32]), 32]), c.rng.randrange(64)], {
        "batch_offset": 0
    } if c.chance(0.3) else {}


def conv2d(c: Calls) -> Any:
    n, h, w = c.rng.choice([1, 2]), c.rng.choice([8, 16]), c.rng.choice([8, 16])
    ins, outs, groups = c.rng.choice([4, 16, 32]), c.rng.choice([8, 32]), c.rng.choice([1, 1, 2])
    k = c.rng.choice([1, 3])
    kwargs = {
        "input_tensor": c.tensor([1, 1, n * h * w, ins], c.some("bfloat16", 0.5)),
        "weight_tensor": c.tensor(
            [outs, ins // groups, k, k], c.some("bfloat16", 0.5), "ROW_MAJOR" if c.chance(0.8) else None
        ),
        "device": {"name": "device"}, "in_channels": ins, "out_channels": outs, "batch_size": n, "input_height": h,
        "input_width": w, "kernel_size": [k, k], "stride": [1, 1], "padding": [k // 2, k // 2], "groups": groups,
    }  # fmt: skip
    if c.chance(0.4):
        kwargs["bias_tensor"] = c.tensor(
            [1, 1, 1, outs], c.some("bfloat16", 0.5), "ROW_MAJOR" if c.chance(0.8) else None
        )
    return [], kwargs


def conv_transpose2d(c: Calls) -> Any:
    _, kwargs = conv2d(c)
    shape = kwargs["weight_tensor"]["tensor"][0]
    shape[0], shape[1] = kwargs["in_channels"], kwargs["out_channels"] // kwargs["groups"]
    for name in ("weight_tensor", "bias_tensor"):
        if name in kwargs and c.chance(0.8):
            kwargs[name]["tensor"][3] = "host"
    return [], {**kwargs, "output_padding": [0, 0]}


def pool(c: Calls) -> Any:
    n, h, w, channels = c.rng.choice([1, 2]), c.rng.choice([8, 16]), c.rng.choice([8, 16]), c.rng.choice([16, 32, 40])
    k = c.rng.choice([2, 3])
    kwargs = {
        "input_tensor": c.tensor([1, 1, n * h * w, channels], c.some("bfloat16", 0.5)), "batch_size": n,
        "input_h": h, "input_w": w, "channels": channels, "kernel_size": [k, k], "stride": [2, 2], "padding": [0, 0],
    }  # fmt: skip
    return [], kwargs


def max_pool(c: Calls) -> Any:
    _, kwargs = pool(c)
    return [], {**kwargs, "dilation": [1, 1]}


def global_pool(c: Calls) -> Any:
    return [c.tensor([c.rng.choice([1, 2]), 8, 8, c.rng.choice([16, 32])])], c.options("dtype", "memory_config")


def upsample(c: Calls) -> Any:
    return [c.tensor([c.rng.choice([1, 2]), 4, 4, c.rng.choice([16, 32])]), c.rng.choice([2, [2, 2], [1, 3]])], {}


def prod(c: Calls) -> Any:
    shape = c.shape()
    args: list[Any] = [c.tensor(shape)]
    if c.chance(0.75):
        args.append(c.dim(len(shape)))
        if c.chance(0.5):
            args.append(c.chance(0.7))
    return args, c.options("memory_config")


def gathering(c: Calls) -> Any:
    shape = c.shape(1)
    return [c.tensor(shape)], {"dim": c.dim(len(shape)), "cluster_axis": c.rng.choice([0, 1, 1])}


def reduce_scatter(c: Calls) -> Any:
    shape = [c.rng.choice([1, 2]), 1, c.rng.choice([32, 64]), c.rng.choice([128, 256])]
    return [c.tensor(shape if c.chance(0.8) else shape[1:])], {
        "dim": c.rng.choice([3, 3, 2, -1]),
        "cluster_axis": c.rng.choice([0, 1]),
    }


def all_reduce(c: Calls) -> Any:
    return [c.x(1)], {"cluster_axis": c.rng.choice([0, 1])}


def to_layout(c: Calls) -> Any:
    return [c.x(), {"name": f"ttnn.{c.rng.choice(LAYOUTS)}_LAYOUT"}], c.options("dtype", "memory_config")


def to_dtype(c: Calls) -> Any:
    x = c.x()
    x["tensor"][3] = "host" if c.chance(0.9) else "device"
    return [x, {"name": f"ttnn.{c.rng.choice(DTYPES)}"}], {}


def to_memory_config(c: Calls) -> Any:
    return [c.x(), {"name": f"ttnn.{c.rng.choice(['L1', 'DRAM'])}_MEMORY_CONFIG"}], c.options("dtype")


def to_device(c: Calls) -> Any:
    x = c.x()
    x["tensor"][3] = "host" if c.chance(0.9) else "device"
    return [x, {"name": "device"}], c.options("memory_config")


def assign(c: Calls) -> Any:
    return [c.x()], {"memory_config": {"name": "ttnn.DRAM_MEMORY_CONFIG"}, **c.options("dtype")}


def rounded(c: Calls) -> Any:
    return [c.x()], {"decimals": c.rng.choice([0, 1])} if c.chance(0.3) else {}


def conv1d(c: Calls) -> Any:
    n, length, ins, outs = c.rng.choice([1, 2]), c.rng.choice([16, 32]), c.rng.choice([4, 16, 32]), 32
    k = c.rng.choice([1, 3])
    kwargs = {
        "input_tensor": c.tensor([n, length, ins], c.some("bfloat16", 0.5)),
        "weight_tensor": c.tensor([outs, ins, k], c.some("bfloat16", 0.5), "ROW_MAJOR" if c.chance(0.8) else None),
        "device": {"name": "device"}, "in_channels": ins, "out_channels": outs, "batch_size": n,
        "input_length": length, "kernel_size": k, "padding": k // 2,
    }  # fmt: skip
    kwargs["weight_tensor"]["tensor"][3] = "host" if c.chance(0.7) else "device"
    return [], kwargs


def point_to_point(c: Calls) -> Any:
    ends = [[c.rng.randrange(n) for n in MESH] for _ in range(2)]
    if c.chance(0.6):
        ends[1] = [ends[0][0], (ends[0][1] + 1) % MESH[1]]
    return [c.x(), *[{"call": ["ttnn.MeshCoordinate", end]} for end in ends]], {}


def all_reduce_async(c: Calls) -> Any:
    kwargs = {"mesh_device": {"name": "device"}, "math_op": {"name": "ttnn.ReduceType.Sum"}}
    return [c.x(1), c.rng.choice([0, 1])], kwargs


def mesh_coordinates(c: Calls) -> Any:
    return [c.x(2)], {}


UNARY = sorted(name.removeprefix("ttnn.") for name, known in elementwise.tables().items() if known.operands == 1)
TYPED = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "eq",
    "ne",
    "ge",
    "gt",
    "le",
    "lt",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_right_shift",
    "maximum",
    "minimum",
    "remainder",
]
UNTYPED = ["atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "logical_left_shift", "pow"]
DRAWS: dict[str, Draw] = {
    **dict.fromkeys(UNARY, unary), **dict.fromkeys(TYPED, binary_typed), **dict.fromkeys(UNTYPED, binary),
    "conv1d": conv1d, "point_to_point": point_to_point,
    "experimental.all_reduce_async": all_reduce_async,
    "gelu_bw": backward, "where": where, "leaky_relu": with_number("negative_slope", True), "round": rounded,
    "clamp": clamp, "typecast": typecast, "sum": reduction, "mean": reduction, "max": reduction,
    "min": reduction, "prod": prod, "argmax": one_dim, "cumsum": scan, "cumprod": scan, "softmax": softmax,
    "sort": sort, "topk": topk, "matmul": matmul, "linear": linear, "reshape": reshape, "permute": permute,
    "transpose": transpose, "repeat": repeat, "repeat_interleave": repeat_interleave, "concat": concat,
    "slice": slice_, "pad": pad,
 "zeros": created, "ones": created, "full": full,
    "empty": empty, "arange": arange, "rand": rand,
    "embedding": embedding, "embedding_bw": embedding_bw, "gather": gather, "scatter": scatter,
    "layer_norm": layer_norm, "rms_norm": layer_norm, "batch_norm": batch_norm,
    "transformer.scaled_dot_product_attention": attention, "transformer.concatenate_heads": concatenate_heads,
    "transformer.split_query_key_value_and_split_heads": split_heads, "experimental.rotary_embedding": rotary,
    "fill_cache": cache_fill, "update_cache": cache_update, "conv2d": conv2d, "conv_transpose2d": conv_transpose2d,
    "max_pool2d": max_pool, "avg_pool2d": pool, "global_avg_pool2d": global_pool, "upsample": upsample,
    "all_gather": gathering, "mesh_partition": gathering, "reduce_scatter": reduce_scatter, "all_reduce": all_reduce,
    "to_layout": to_layout, "to_dtype": to_dtype, "to_memory_config": to_memory_config, "to_device": to_device,
    "from_device": lambda c: ([c.x()], {}), "assign": assign,
}  # fmt: skip


OPTIONS: dict[str, list[Any]] = {
    "alpha": [0.5, 2], "approx": [True], "batch_offset": [0, 1], "beta": [2.0], "ceil_mode": [True, False],
    "compute_kernel_config": [None], "core_grid": [None], "correction": [False, True],
    "count_include_pad": [True, False], "deallocate_input": [False], "decimals": [0, 1, -1], "descending": [True],
    "divisor_override": [None, 3], "eps": [1e-3], "epsilon": [1e-3], "exponent": [2],
    "fast_and_approximate_mode": [True, False], "high": [2.0], "is_causal": [True, False],
    "keepdim": [True, False], "largest": [True, False], "low": [-1.0], "mode": ["nearest", "bilinear"],
    "num_kv_heads": [None], "num_links": [1], "numeric_stable": [True, False], "pad_value": [0, 1.0],
    "queue_id": [None, 0], "reverse_order": [True, False],
    "rounding_mode": [None, "floor", "trunc"], "scalar": [1.0], "scale": [0.5], "seed": [3],
    "sorted": [True, False], "stable": [True, False], "sub_core_grids": [None], "threshold": [10.0],
    "token_index": [None], "training": [True, False], "transpose_key": [True, False], "use_multicore": [True, False],
    "variant": [{"name": "ttnn.GeluVariant.Tanh"}], "value": [0.0, 2],
    **{name: [{"name": f"ttnn.{kind}"} for kind in DTYPES] for name in ("dtype", "output_dtype")},
    **{name: [{"name": f"ttnn.{kind}_LAYOUT"} for kind in LAYOUTS] for name in ("layout", "output_layout")},
    "memory_config": [{"name": f"ttnn.{place}_MEMORY_CONFIG"} for place in ("DRAM", "L1")],
}  # fmt: skip
"""Values of optional arguments that no draw needs to know."""


def with_options(c: Calls, callee: str, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Returns a call with further optional arguments, and with some arguments by name in place of by place."""
    overload = c.rng.choice(signatures(callee))
    places = [p.name for p in overload if not p.keyword]
    more = dict(kwargs)
    for p in overload:
        if p.name in (*places[: len(args)], *more) or p.default is NEEDED:
            continue
        if p.name in OPTIONS and c.chance(0.2):
            more[p.name] = c.rng.choice(OPTIONS[p.name])
    if c.chance(0.2):
        more["unknown"] = 1
    kept = c.rng.randint(0, len(args)) if c.chance(0.3) and len(args) <= len(places) else len(args)
    return args[:kept], dict(zip(places[kept:], args[kept:], strict=False)) | more


def random_job(rng: random.Random, names: Sequence[str] = tuple(sorted(DRAWS))) -> Job:
    """Returns a call of one of some functions."""
    name = rng.choice(names)
    draws = Calls(rng)
    args, kwargs = DRAWS[name](draws)
    if draws.chance(0.3):
        args, kwargs = with_options(draws, f"ttnn.{name}", args, kwargs)
    return {"callee": f"ttnn.{name}", "args": args, "kwargs": kwargs}
