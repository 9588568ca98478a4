"""What Tenstorrent's compiler does wrongly or refuses: each cause with its smallest program."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jax.sharding import PartitionSpec as P

from tests.generators.plain_programs import CUBE
from tests.generators.upstream.judge import LESS_PRECISE, REFUSED, WRONG, Judged
from tests.generators.upstream.program import Program

PLUGIN = "jax-tt-plugin 0.1.3"
"""The compiler of the rows."""
A, IMAGES = "f32[8,16]", "f32[8,8,8,8]"


@dataclass(frozen=True)
class Row:
    """A cause.

    Attributes:
      name: the cause in a few words.
      program: the smallest program that shows it.
      verdict: `wrong`, `refused`, or `less precise` for another function with nearly the same values.
      op: a pattern of the operation that the diagnosis or the refusal names.
      cause: a pattern of the cause of the diagnosis, or of the reason of the refusal.
      prints: what the compiler prints.
      right: what would be right.
      stays: a pattern of the reason for which no repair makes it right; empty where `repair` does.
    """

    name: str
    program: Program
    verdict: str
    op: str
    cause: str
    prints: str
    right: str
    stays: str = ""

    def matches(self, judged: Judged) -> bool:
        """Whether a program shows this cause; the first row that matches counts."""
        return (
            judged.verdict == self.verdict
            and re.search(self.op, judged.op) is not None
            and re.search(self.cause, judged.cause) is not None
        )


def row_of(judged: Judged) -> Row | None:
    """Returns the row of a program that is wrong or refused; None if no row has its cause."""
    return next((row for row in ROWS if row.matches(judged)), None)


def _one(source: str, *specs: P | None, args: tuple[str, ...] = (A,), out: P | None = None) -> Program:
    return Program(source, args, specs, out)


_CONV = "lax.conv_general_dilated(x, y, {})"
_KERNELS = (IMAGES, "f32[8,8,3,3]")

ROWS = (
    Row("gather of two axes", _one("x * 2", P(("y", "x")), out=P()), WRONG,
        "all_gather|up to ttir.(mesh_partition|dot_general)",
        "^gather order|^dropped reduction|^instead of stablehlo.(sort|dot_general)",
        "`all_gather` over `y`, then over `x`: the blocks come back interleaved",
        "the minor axis first: `x`, then `y`"),
    Row("reshard of two axes", _one("x * 2", P(None, ("y", "x")), out=P(("y", "x"))), WRONG, "all_to_all", "",
        "two `all_to_all`s, over `y`, then over `x`: the blocks come back interleaved",
        "one of both axes, or a gather and a slice"),
    Row("own part over two axes", _one("x @ y", P(None, ("x", "y")), P(), args=(A, "f32[16]")), WRONG,
        "dot_general|concat|mesh_partition|rows_scatter", "^partition order|^instead of $",
        "`mesh_partition` of `y` over axis `y`, then over `x`, for a dim split over `('x', 'y')`",
        "the major axis first: `x`, then `y`"),
    Row("own part over two axes, in a convolution",
        _one(_CONV.format('(1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")'), P(None, None, None, ("x",
            "y")),
             P(), args=(IMAGES, "f32[1,1,8,8]")), WRONG, "conv", "^partition order",
        "`mesh_partition` of the kernel's input features over `y`, then over `x`",
        "the major axis first: `x`, then `y`"),
    Row("sums scattered over two axes", _one("jax.nn.relu(x @ y) @ z", *[P(("y", "x"))] * 3,
        args=(A, "f32[16,16]", "f32[16,16]")), WRONG, "reduce_scatter", "",
        "`reduce_scatter` over `y`, then over `x`, for a dim split over `('x', 'y')`",
        "the major axis first: `x`, then `y`"),
    Row("reverse", _one("x[::-1]", P("y")), WRONG, "reverse", "", "`reverse` of each shard alone",
        "the shards change places, too"),
    Row("convolution", _one(_CONV.format('(1, 1), "SAME"'), P(None, None, "y"), P(), args=_KERNELS), WRONG, "conv",
        "^window|^instead of stablehlo.convolution", "`conv2d` of each shard alone, padded with zeros",
        "the rows of the neighbours at the cut"),
    Row("concatenation along a split dim", _one("jnp.roll(x, 4, 0)", P(), out=P("y")), WRONG, "concat", "^slice across",
        "each device joins its own parts of both operands", "the operands whole, and the device's part of the result"),
    Row("update of a split dim", _one("lax.dynamic_update_slice_in_dim(x, y, 5, 1)", P(None, "x"), P(),
        args=(A, "f32[8,2]")), WRONG, "rows_scatter|func.return|all_gather|up to ttir.reshape",
        "dynamic_update_slice|one too many",
        "the start of the whole array, clamped into each shard",
        "the start less where the shard starts; a shard without the update stays"),
    Row("pad that moves", _one("lax.pad(x, 0.0, ((-2, 2, 0), (0, 0, 0)))", P()), WRONG, "func.return", "^left out",
        "nothing: a pad whose result has the size of the operand is left out", "2 rows less in front, 2 more behind"),
    Row("scatter into a split dim", _one("x.at[2:4].set(0.0)", P("y")), WRONG,
        "rows_scatter|reshape|concat|ttir.add|slice_static", "scatter",
        "`rows_scatter` into each shard with the indices of the whole array", "the indices less its start"),
    Row("scatter of split updates", _one("x.at[y].max(0.5)", P(None, "y"), P("x"), args=(A, "i32[8]<4")), WRONG,
        "all_reduce", "reduce_type|scatter",
        "`all_reduce` by sum of what each device makes with its part of the updates",
        "an `all_reduce` by max; of an addition, the operand counted once"),
    Row("any", _one("(x > 0).any(0)", P()), WRONG, "ttnn.sum", "^another reduction: the program's is by or",
        "TTIR is right; TTNN returns `ttnn.sum` in bfloat16: how many are true, right as a truth value alone",
        "1 where any is true"),
    Row("reduction by two operations", _one("lax.reduce(x, np.float32(0), lambda a, b: a + b * b, (0,))", P()), WRONG,
        "ttir.prod", "^another reduction: the program's is by multiply, add", "`ttir.prod`: the product, after the "
        "first operation alone", "a square, and a sum"),
    Row("remainder of unlike signs", _one("lax.rem(x, jnp.float32(0.75))", P()), WRONG, "ttnn.remainder", "",
        "TTIR is right; TTNN has `ttnn.remainder`, which has the sign of the divisor", "the sign of the dividend"),
    Row("integers of 8 bits", _one("x * x", P(), args=("i8[8,16]<100",)), WRONG, "ttnn", "^integers.*: int8 in",
        "TTIR is right; TTNN has `si32`, which does not wrap at 8 bits", "a result as 8 bits hold it"),
    Row("integers of 64 bits", _one("x + 1", P(), args=("i64[8,16]<9000000000",)), WRONG, "ttnn",
        "^integers.*: int64 in", "TTIR is right; TTNN has `si32`: numbers beyond 32 bits are others",
        "64 bits, or a refusal",
        "int64 in the program, and int32"),
    Row("constant of 64 bits", _one("(x.astype(jnp.uint64) | jnp.uint64(1 << 40)).astype(jnp.float64)", P(),
        args=("i64[8,16]<100",)), WRONG, "ttir.bitwise_or", "",
        "`ttir.constant` as the pair `[0, 256]` of `ui32`, of which the low word is used alone; so is the exponent of "
        "`jax.random.normal` in float64, which gives -inf", "both words", "stablehlo.or"),
    Row("array of the host over two axes", _one("wsc(x, P(('x', 'y'))) + y", None, P(("x", "y")), args=(A, A), out=P()),
        WRONG, "mesh_shard|ttir.add", "^instead of stablehlo.add",
        "`ttir.mesh_shard` with `shard_dims = [0, 0]`, which is `P(('y', 'x'))`, too", "the order of the axes"),
    Row("gelu by tanh", _one("jax.nn.gelu(x)", P()), LESS_PRECISE, "ttnn.gelu", "",
        "TTIR is right; TTNN has `ttnn.gelu`, which is that by erf, up to 5e-4 apart", "gelu by tanh"),
    Row("axes of a result in another order", _one("x * 2", P(("x", "y"))), REFUSED, "", "Fail to determine shardDims",
        "Failed to parse output sharding: Fail to determine shardDims", "a result as `P(('x', 'y'))`"),
    Row("axis that goes to another dim", _one("x * 2", P("y"), out=P("x")), REFUSED, "", "CollectivePermuteOp",
        "lowering for CollectivePermuteOp is not implemented yet (tt-mlir 3370)", "a permute, or a gather and a slice"),
    Row("product, all, any over a split dim", _one("x.prod(0)", P("y")), REFUSED, "", "Invalid reduction type",
        "'ttir.all_reduce' op Invalid reduction type", "a gather and a local reduction"),
    Row("argmax over a dim split over two axes", _one("jnp.argmax(x, 0)", P(("y", "x"))),
        REFUSED, "", "legalize operation 'sdy.all_reduce'",
        "failed to legalize operation 'sdy.all_reduce'", "a gather of values and indices, and a local argmax"),
    Row("loop over split values", _one("x + jax.random.normal(jax.random.key(0), (8, 16))", P("y")), REFUSED, "",
        "condition block arguments", "expect operands to be compatible with condition block arguments",
        "local types in the loop's regions, too"),
    Row("convolution with a stride", _one(_CONV.format('(2, 2), "VALID"'), P(None, None, "y"), P(), args=_KERNELS),
        REFUSED, "conv", "inferred shape", "inferred shape is incompatible with return type", "a gather"),
    Row("pad of a split dim", _one("lax.pad(x, 0.0, ((0, 2, 0), (0, 0, 0)))", P("y"), out=P("y")), REFUSED, "",
        "pad. op inferred type", "inferred type(s) are incompatible with return type(s): the whole pad of each shard",
        "a gather, a pad, and the device's part"),
    Row("transposed convolution",
        _one(_CONV.format("(1, 1), ((1, 1), (1, 1)), (2, 2)"), P(None, None, "y"), P(), args=_KERNELS),
        REFUSED, "conv", "propagated tensor shardings to tensor dimensions",
        "Could not apply propagated tensor shardings to tensor dimensions", "a gather"),
    Row("convolution over groups of features",
        _one(_CONV.format('(2, 2), "VALID"'), P(None, "x", "y"), P(), args=_KERNELS), REFUSED, "conv",
        "expects input feature dimension", "expects input feature dimension / feature_group_count = kernel input "
        "feature dimension", "a part of the kernel, too"),
    Row("windows split over two axes",
        _one(_CONV.format('(2, 2), "VALID"'), P(None, None, ("y", "x")), P(), args=(IMAGES, "f32[8,8,2,2]")), REFUSED,
        "", "already bound by a parent", "'sdy.all_slice' op operates on an axis which is already bound", "a gather"),
    Row("dynamic_slice beside a split dim", _one("lax.dynamic_slice_in_dim(x, y[0], 4, 0)", P(None, "y"), P(),
        args=(A, "i32[1]<5")), REFUSED, "", "has slice size", "has slice size 16 greater than dimension size 8",
        "the local size of the dim that is taken whole"),
    Row("dynamic_update_slice into a split dim", _one("lax.dynamic_update_slice_in_dim(x, y, 3, 0)",
        P(("y", "x")), P(), args=(A, "f32[2,16]")), REFUSED, "dynamic_update_slice", "expects size at dimension",
        "expects size at dimension 0 of update to be in range [0, 1]", "the part of the update that lies in the shard"),
    Row("scatter of rows into a split dim", _one("x.at[2:4].set(0.0)", P(("y", "x"))), REFUSED, "scatter",
        "bounds of the window dimensions", "scatter expects bounds of the window dimensions of updates to not exceed "
        "the bounds of the operand", "the part of the rows that lies in the shard"),
    Row("gather along a dim", _one("jnp.take_along_axis(x, y[:, None], 1)", P("y"), P(), args=(A, "i32[8]<8")), REFUSED,
        "", "attribute dictionary for gather", "Could not apply propagated tensor shardings to attribute dictionary",
        "a local gather"),
    Row("gather or scatter, index and rows split alike", _one("x[y]", P("y"), P("y"), args=(A, "i32[8]<8")), REFUSED,
        "", "overlaps with operand dimension", "'sdy.all_reduce' op reduction axis overlaps with operand dimension "
        "sharding", "one of the two gathered first"),
    Row("reshape of a dim into smaller parts", _one("x.reshape(4, 32) * 2", P(("y", "x"))), REFUSED, "reshape",
        "number of output elements", "number of output elements (0) doesn't match expected number", "a gather"),
    Row("reshape, shards that do not fit", _one("x.reshape(2, 4, 16) * 2", P("x", "y")), REFUSED, "reshape",
        "propagated tensor shardings to tensor dimensions",
        "Could not apply propagated tensor shardings to tensor dimensions", "a gather"),
    Row("mesh of three axes", Program("x * 2", (A,), (P("x"),), mesh=CUBE), REFUSED, "", "0D, 1D, or 2D mesh",
        "Pass expects a 0D, 1D, or 2D mesh, got 3D", "any mesh", "expects a 0D, 1D, or 2D mesh"),
    Row("window of one dim", _one("lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), 'SAME')", P(),
        args=("f32[16]",)),
        REFUSED, "reduce_window", "legalize operation 'stablehlo.reduce_window'",
        "failed to legalize operation 'stablehlo.reduce_window'", "a pool of a tensor with dims of size 1"),
)  # fmt: skip
