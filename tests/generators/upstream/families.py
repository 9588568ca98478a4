"""Every family of operations of StableHLO with every placement of its dims on a 2x4 mesh."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jax.sharding import PartitionSpec as P

from tests.generators.upstream.program import Program, placements, shape_of

OTHERS = 8
"""Placements of several arguments that are tried, of all of them."""


@dataclass(frozen=True)
class Family:
    """Programs of one family of operations, each in every placement.

    Attributes:
      name: the operation.
      args: the types of the arguments.
      sources: the expressions.
      others: how many placements are drawn that split other arguments than the first, too.
    """

    name: str
    args: tuple[str, ...]
    sources: tuple[str, ...]
    others: int = OTHERS

    def programs(self) -> Iterator[Program]:
        for source in self.sources:
            for specs in self.placements():
                yield Program(source, self.args, specs)

    def placements(self) -> list[tuple[P, ...]]:
        """Returns every placement of the first argument with the others whole, and a sample of all other placements."""
        first, *others = [placements(shape_of(a)) for a in self.args]
        whole = (P(),) * len(others)
        rest = [row for row in itertools.product(first, *others) if any(map(any, row[1:]))]
        return [(p, *whole) for p in first] + sample(rest, self.others)


def sample(rows: Sequence[tuple[P, ...]], most: int) -> list[tuple[P, ...]]:
    """Returns at most so many rows, the same in each run."""
    if len(rows) <= most:
        return list(rows)
    drawn = np.random.default_rng(len(rows)).choice(len(rows), most, replace=False)
    return [rows[i] for i in sorted(drawn.tolist())]


A, B, V, C, I4 = "f32[8,16]", "f32[16,8]", "f32[16]", "f32[8,16,8]", "f32[8,8,8,8]"
CONV = 'lax.conv_general_dilated(x, y, {}, {}, dimension_numbers=("NHWC", "HWIO", "NHWC"){})'

FAMILIES = (
    Family("elementwise", (A,), (
        "jnp.exp(x) + jnp.sin(x) * jnp.cos(-x)", "jnp.log(jnp.abs(x) + 1) - lax.rsqrt(jnp.abs(x) + 1)",
        "lax.erf(x) + lax.logistic(x) - jnp.tanh(x)", "jnp.expm1(x) * jnp.log1p(jnp.abs(x))",
        "jnp.sign(x) * jnp.floor(x * 4) + jnp.ceil(x)", "jnp.clip(x, -0.5, 0.5)", "jnp.round(x * 4)",
        "(x > 0) & ~(x > 1) | jnp.isfinite(x)", "(x * 10).astype(jnp.int32) // 3", "x.astype(jnp.bfloat16)",
        "lax.population_count((jnp.abs(x) * 10).astype(jnp.int32))", "jnp.arctan2(x, x + 2)",
        "lax.cbrt(x)", "jnp.tan(x)", "lax.rem(x, jnp.float32(0.75))", "jnp.power(jnp.abs(x), 1.5)", "jax.nn.gelu(x)",
    )),
    Family("elementwise of two", (A, A), ("x * y + x", "jnp.where(x > y, x, y * 2)", "jnp.arctan2(x, y)")),
    Family("broadcast", (V, A), ("x + y", "jnp.broadcast_to(x, (8, 16)) * y")),
    Family("broadcast", (A,), (
        "jnp.broadcast_to(x[:, None, :], (8, 8, 16))", "x[:, :, None] * jnp.ones((8, 16, 8), jnp.float32)",
        "x[None] + jnp.arange(8, dtype=jnp.float32)[:, None, None]",
    )),
    Family("outer", ("f32[8]", V), ("x[:, None] * y[None, :]",)),
    Family("reshape", (A,), (
        "x.reshape(128) * 2", "x.reshape(16, 8) * 2", "x.reshape(8, 4, 4) * 2", "x.reshape(2, 4, 16) * 2",
        "x.reshape(8, 2, 8) * 2", "x.reshape(1, 8, 1, 16) * 2", "x.reshape(4, 32) * 2",
    )),
    Family("reshape", (C,), ("x.reshape(128, 8) * 2", "x.reshape(8, 128) * 2", "x.reshape(8, 4, 4, 8) * 2")),
    Family("transpose", (A,), ("x.T * 2",)),
    Family("transpose", (C,), ("jnp.transpose(x, (2, 0, 1)) * 2", "jnp.swapaxes(x, 1, 2).reshape(8, 128)")),
    Family("slice", (A,), (
        "x[:4] * 2", "x[4:] * 2", "x[:, 8:] * 2", "x[2:6, 4:12] * 2", "x[1:7] * 2", "x[::2] * 2", "x[:, 1::2] * 2",
        "x[:1] * 2", "x[3] * 2", "x[:, -1] * 2",
    )),
    Family("split", (A,), (
        "jnp.split(x, 2)[1]", "[a * 2 for a in jnp.split(x, 2, 1)]", "[a + 1 for a in jnp.split(x, 4, 1)]",
        "jnp.array_split(x, [4, 12], 1)[1] * 2",
    )),
    Family("dynamic_slice", (A, "i32[1]<5"), (
        "lax.dynamic_slice_in_dim(x, y[0], 4, 0)", "lax.dynamic_slice(x, (y[0], y[0]), (4, 8))",
        "lax.dynamic_slice_in_dim(x, y[0], 4, 1)", "lax.dynamic_index_in_dim(x, y[0], 0, False)",
    )),
    Family("dynamic_update_slice", (A, "f32[2,16]", "i32[1]<5"), (
        "lax.dynamic_update_slice_in_dim(x, y, z[0], 0)", "lax.dynamic_update_slice_in_dim(x, y, 3, 0)",
    ), 4),
    Family("dynamic_update_slice", (A, "f32[8,2]"), ("lax.dynamic_update_slice_in_dim(x, y, 5, 1)",), 4),
    Family("static update", (A,), ("x.at[2:4].set(0.0)", "x.at[:, 3].add(1.0)", "x.at[0].set(x[1])")),
    Family("concatenate", (A,), (
        "jnp.concatenate([x, x * 2])", "jnp.concatenate([x, x * 2], 1)", "jnp.concatenate([x[4:], x[:4]])",
        "jnp.stack([x, x * 2])", "jnp.stack([x, x * 2], 1).reshape(16, 16)", "jnp.repeat(x, 2, 0)",
            "jnp.tile(x, (2, 1))",
    )),
    Family("concatenate", (A, A), ("jnp.concatenate([x, y])", "jnp.concatenate([x, y], 1)"), 8),
    Family("roll", (A,), ("jnp.roll(x, 1, 0)", "jnp.roll(x, 5, 1)", "jnp.roll(x, 4, 0)")),
    Family("pad", (A,), (
        "jnp.pad(x, ((1, 3), (0, 0)))", "jnp.pad(x, ((0, 0), (4, 4)))", "jnp.pad(x, ((4, 4), (0, 0)))",
        "lax.pad(x, 0.0, ((0, 0, 1), (0, 0, 0)))", "lax.pad(x, 0.0, ((0, 8, 0), (0, 0, 0)))",
        "lax.pad(x, 1.0, ((-2, 2, 0), (0, 0, 0)))", 'jnp.pad(x, ((1, 1), (0, 0)), mode="edge")',
    )),
    Family("reverse", (A,), ("x[::-1]", "x[:, ::-1]", "x[::-1, ::-1] * 2")),
    Family("reduce", (A,), (
        "x.sum(0)", "x.sum(1)", "x.sum()", "x.max(0)", "x.min(1)", "x.prod(0)", "(x > 0).any(0)", "(x > -9).all(1)",
        "x.mean(1, keepdims=True)", "x.var(0)", "jax.nn.softmax(x)", "jax.nn.logsumexp(x, 0)",
        "jnp.linalg.norm(x, axis=1)", "(x > 0).sum(0)", "(x * 10).astype(jnp.int32).sum(1)",
            "x.astype(jnp.bfloat16).sum(0)",
        "(x.sum(0), x.sum(1))", "(x - x.max(1, keepdims=True)) / x.std(0)",
    )),
    Family("reduce", (C,), ("x.sum((0, 2))", "x.max(1)", "x.prod(1)", "x.mean((1, 2))")),
    Family("argmax", (A,), ("jnp.argmax(x, 0)", "jnp.argmax(x, 1)", "jnp.argmin(x, 0)", "jnp.argmax(x)")),
    Family("dot_general", (A, B), ("x @ y",), 30),
    Family("dot_general", (A, A), ("x @ y.T", "x.T @ y", "jnp.vdot(x, y)"), 8),
    Family("dot_general", (A, V), ("x @ y",), 8),
    Family("dot_general", (C, "f32[8,8,16]"), ('jnp.einsum("bij,bjk->bik", x, y)', 'jnp.einsum("bij,kji->bk", x, y)'),
        8),
    Family("dot_general", (C, "f32[8,16]"), ('jnp.einsum("bij,jk->bik", x, y)',
        "jnp.tensordot(x, y, ((0, 1), (0, 1)))"), 6),
    Family("convolution", (I4, "f32[3,3,8,8]"), (
        CONV.format("(1, 1)", '"SAME"', ""), CONV.format("(2, 2)", '"VALID"', ""),
    ), 8),
    Family("convolution", (I4, "f32[2,2,8,8]"), (CONV.format("(2, 2)", '"VALID"', ""),), 3),
    Family("convolution", (I4, "f32[1,1,8,16]"), (CONV.format("(1, 1)", '"VALID"', ""),), 3),
    Family("convolution", (I4, "f32[3,3,1,8]"), (CONV.format("(1, 1)", '"SAME"', ", feature_group_count=8"),), 3),
    Family("convolution", (I4, "f32[3,3,8,8]"), (
        CONV.format("(1, 1)", "((1, 1), (1, 1))", ", lhs_dilation=(2, 2)"),
        CONV.format("(1, 1)", '"SAME"', ", rhs_dilation=(2, 2)"),
    ), 0),
    Family("convolution of one dim", (C, "f32[3,8,8]"), (
        'lax.conv_general_dilated(x, y, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))',
        'lax.conv_general_dilated(x, y, (1,), ((2, 0),), dimension_numbers=("NWC", "WIO", "NWC"))',
    ), 4),
    Family("reduce_window", (I4,), (
        'lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")',
        'lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")',
        'lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4',
    )),
    Family("cumulative", (A,), (
        "jnp.cumsum(x, 0)", "jnp.cumsum(x, 1)", "jnp.cumprod(x, 0)", "lax.cummax(x, axis=1)",
        "lax.cumsum(x, axis=0, reverse=True)", "lax.associative_scan(jnp.add, x)",
    )),
    Family("sort", (A,), (
        "jnp.sort(x, 0)", "jnp.sort(x, 1)", "jnp.argsort(x, 0)", "lax.top_k(x, 3)", "lax.top_k(x.T, 2)[1]",
        "lax.sort((x, x * 2), dimension=1, num_keys=1)", "jnp.median(x, 0)",
    )),
    Family("gather", (A, "i32[8]<8"), ("x[y]", "jnp.take(x, y, 1)", "jnp.take_along_axis(x, y[:, None], 1)",
        "x[y, y]"), 6),
    Family("gather", (A,), ("x[np.array([1, 3, 6])]", "x[:, np.array([0, 15])]", "jnp.diag(x[:, :8])")),
    Family("gather", ("f32[16,8]", "i32[8,8]<16"), ("x[y]", "jax.nn.one_hot(y, 16) @ x"), 6),
    Family("gather", (C, "i32[8]<8"), ("x[jnp.arange(8), y]", "x[y]"), 4),
    Family("scatter", (A, "i32[8]<8", A), ("x.at[y].add(z)", "x.at[y].set(0.0) + z",
        "x.at[jnp.arange(8), y].set(z[:, 0])"), 4),
    Family("scatter", (A, "i32[8]<4"), ("jax.ops.segment_sum(x, y, 4)", "x.at[:, y].add(1.0)", "x.at[y].max(0.5)"), 4),
    Family("scatter", (A,), ("x.at[np.array([1, 3, 6])].add(1.0)",
        "x.at[np.array([1, 3]), np.array([2, 9])].set(0.0)")),
    Family("iota", (A,), (
        "x + jnp.arange(16, dtype=jnp.float32)", "x * lax.broadcasted_iota(jnp.float32, (8, 16), 0)", "jnp.tril(x)",
        "jnp.where(jnp.arange(8)[:, None] < 5, x, 0)", "x[:, :8] + jnp.eye(8)", "jnp.linspace(0, 1, 16) * x",
    )),
    Family("select", (A, "bool[8,16]"), ("jnp.where(y, x, 0)", "lax.select(y, x, -x)"), 4),
    Family("loops", (A,), (
        "lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + i, x)", "lax.scan(lambda c, r: (c + r, c.sum()), x[0], x)",
        "lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 2 + 1, jnp.abs(x))",
        "lax.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, x)", "lax.switch(1, [jnp.sin, jnp.cos], x)",
        "lax.map(lambda r: r * r.sum(), x)", "lax.fori_loop(0, 2, lambda i, c: c.at[i].set(c[i + 1]), x)",
        "lax.scan(lambda c, _: (jnp.roll(c, 1, 0), None), x, None, length=2)[0]",
    )),
    Family("loops", (A, "f32[3,16,16]"), ("lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, y)[0]",), 6),
    Family("random", (A,), (
        "x + jax.random.normal(jax.random.key(0), (8, 16))",
            "x * jax.random.bernoulli(jax.random.key(1), 0.5, (8, 16))",
    )),
    Family("element types", ("bf16[8,16]",), ("x @ x.T", "x.sum(0)", "jax.nn.softmax(x)", "x[::2] * 2",
        "jnp.max(x, 1)")),
    Family("element types", ("i32[8,16]<100",), ("x.sum(0)", "x.max(1)", "x * 3 - 7", "x % 5", "x << 2",
        "jnp.sort(x, 1)")),
    Family("element types", ("ui8[8,16]<100",), ("x + jnp.uint8(1)", "x.astype(jnp.float32).sum(0)")),
    Family("models", (A, "f32[16,48]"), (
        "jnp.concatenate([a * 2 for a in jnp.split(x @ y, 3, 1)], 1)",
        "(lambda q, k, v: jax.nn.softmax(q @ k.T) @ v)(*jnp.split(x @ y, 3, 1))",
        "(lambda h: jnp.split(h, 2, 1)[0] * jax.nn.silu(jnp.split(h, 2, 1)[1]))(x @ y)",
    ), 8),
    Family("models", (A, "f32[16,16]", "f32[16,16]"), (
        "jax.nn.relu(x @ y) @ z", "jax.grad(lambda w: ((jax.nn.relu(x @ w) @ z) ** 2).mean())(y)",
    ), 12),
    Family("models", ("f32[8,8,16]", "f32[16,16]"), (
        '(lambda h: jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(jnp.einsum("bshd,bthd->bhst", h, h)), h))'
        "((x @ y).reshape(8, 8, 4, 4)).reshape(8, 8, 16)",
        "x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) @ y",
        "(lambda a, b: jnp.concatenate([a * jnp.cos(b), b * jnp.sin(a)], -1))(*jnp.split(x @ y, 2, -1))",
    ), 6),
)  # fmt: skip


def reshards() -> Iterator[Program]:
    """Every change of placement: at the end of a program, by a constraint in it, and of a product."""
    for kind in ("f32[16]", A):
        for spec, out in itertools.product(placements(shape_of(kind)), repeat=2):
            yield Program("x * 2", (kind,), (spec,), out)
    for spec, out in sample(list(itertools.product(placements((8, 16)), repeat=2)), 40):
        yield Program(f"wsc(x * 2, {out}) + 1".replace("PartitionSpec", "P"), (A,), (spec,))
    for spec, out in sample(list(itertools.product(placements((8, 16, 8)), repeat=2)), 30):
        yield Program("x * 2", (C,), (spec,), out)
    triples = sample(list(itertools.product(placements((8, 16)), placements((16, 8)), placements((8, 8)))), 16)
    for a, b, out in triples:
        yield Program("x @ y", (A, B), (a, b), out)


def family_programs() -> Iterator[tuple[str, Program]]:
    """Yields the programs of all families, with the names of these."""
    for family in FAMILIES:
        for program in family.programs():
            yield family.name, program
    for program in reshards():
        yield "reshard", program
