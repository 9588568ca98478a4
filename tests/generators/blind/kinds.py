"""Kinds of errors: the changes of an operation that leave its types as they are."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tests.generators.blind.texts import Op, Text

Change = tuple[str, ...]
"""The lines in place of one; of a dropped collective its result and its operand."""
Make = Callable[[Op, Text, np.random.Generator], Iterator[Change]]
KINDS: dict[str, Make] = {}
"""The kinds of errors by name: each yields the changes that it can make to an operation."""


def kind(name: str) -> Callable[[Make], Make]:
    """Registers a kind of error."""

    def register(make: Make) -> Make:
        KINDS[name] = make
        return make

    return register


def shape(of: str) -> tuple[int, ...]:
    """Returns the shape of a tensor type."""
    return tuple(int(x) for x in re.findall(r"(\d+)x", of.split(",")[0]))


def numbers(text: str) -> list[int]:
    """Returns the numbers of a list of attributes, without their types."""
    return [int(x) for x in re.findall(r"(?<![\w.])-?\d+(?!\w)", text)]


def _listed(op: Op, name: str) -> tuple[str, list[int]] | None:
    found = re.search(rf"(?<!\w){name} = (?:array<i\d+: |\[)([^\]>]*)", op.attributes)
    return (found[0], numbers(found[1])) if found else None


def _relisted(old: str, values: Sequence[int]) -> str:
    rest = iter(values)
    head, _, tail = old.partition(": " if "array<" in old else "[")
    return head + (": " if "array<" in old else "[") + re.sub(r"(?<!\w)-?\d+(?!\w)", lambda _: str(next(rest)), tail)


@kind("reduced dim")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    if op.name not in ("sum", "max", "min", "mean", "argmax"):
        return
    found = re.search(r"(dim_arg = \[|dim = )(\d+)", op.attributes)
    if found is None or len(numbers(op.attributes.split("dim_arg", 1)[-1].split("]")[0])) > 1:
        return
    size, dim, keeps = shape(op.types[0]), int(found[2]), "keep_dim = true" in op.attributes

    def made(d: int) -> tuple[int, ...]:
        return (*size[:d], *([1] if keeps else []), *size[d + 1 :])

    for other in range(len(size)):
        if other != dim and made(other) == made(dim) and size[other] > 1:
            yield (op.edited(found[0], f"{found[1]}{other}"),)


@kind("softmax, cumsum or sort dim")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    found = re.search(r"(?<!\w)(dimension|dim) = (\d+)", op.attributes)
    if op.name in ("softmax", "cumsum", "sort") and found:
        for other in set(range(len(shape(op.types[0])))) - {int(found[2])}:
            yield (op.edited(found[0], f"{found[1]} = {other}"),)


@kind("concatenation order")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    if op.name == "concat" and len(op.operands) > 1:
        i = int(rng.integers(len(op.operands) - 1))
        if op.types[i] == op.types[i + 1] and op.operands[i] != op.operands[i + 1]:
            a = list(op.operands)
            a[i], a[i + 1] = a[i + 1], a[i]
            yield (op.called(a),)


@kind("slice start")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    begins, ends = _listed(op, "begins"), _listed(op, "ends")
    if op.name != "slice_static" or begins is None or ends is None:
        return
    for i, size in enumerate(shape(op.types[0])):
        for by in (-1, 1):
            if begins[1][i] + by >= 0 and ends[1][i] + by <= size:
                starts, stops = ([*v[:i], v[i] + by, *v[i + 1 :]] for v in (begins[1], ends[1]))
                line = op.edited(begins[0], _relisted(begins[0], starts))
                yield (line.replace(ends[0], _relisted(ends[0], stops), 1),)


@kind("permutation")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    found = _listed(op, "permutation")
    if op.name == "permute" and found:
        size, p = shape(op.types[0]), found[1]
        for i in range(len(p)):
            for j in range(i):
                if size[p[i]] == size[p[j]] > 1:
                    q = list(p)
                    q[i], q[j] = q[j], q[i]
                    yield (op.edited(found[0], _relisted(found[0], q)),)


@kind("operands exchanged")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    ordered = "subtract", "div", "divide", "pow", "pow_tensor", "remainder", "gt", "ge", "lt", "le", "matmul"
    if op.name in (*ordered, "dot_general") and len(op.operands) == 2 and op.operands[0] != op.operands[1]:
        both = op.types[0] == op.types[1] or (op.dialect == "ttnn" and op.name not in ("matmul", "dot_general"))
        if both:
            line = op.called(op.operands[::-1])
            yield (line.replace(", ".join(op.types), ", ".join(op.types[::-1]), 1),)


@kind("where exchanged")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    if op.name == "where" and op.operands[1] != op.operands[2]:
        line = op.called((op.operands[0], *op.operands[:0:-1]))
        yield (line.replace(", ".join(op.types), ", ".join((op.types[0], *op.types[:0:-1])), 1),)


OTHERS = {
    "other function": "exp sin,sin cos,cos sin,tanh sigmoid,rsqrt sqrt,sqrt rsqrt,log abs,neg abs,sign neg,floor ceil,"
    "expm1 exp,abs neg,silu relu,gelu silu,sigmoid tanh,relu abs",
    "other arithmetic": "add subtract,subtract add,multiply add,div multiply,divide multiply,maximum minimum,"
    "minimum maximum,logical_and logical_or",
    "other reduction": "sum max,max min,mean sum",
    "comparison": "eq ne,ne eq,lt le,le lt,gt ge,ge gt,gt lt,lt gt",
    "zeros and ones": "zeros ones,ones zeros",
}
"""By kind the operations and those in their place."""


def _others(pairs: Sequence[Sequence[str]]) -> Make:
    def make(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
        for old, new in pairs:
            if op.name == old:
                yield (op.line.replace(f'"{op.dialect}.{old}"', f'"{op.dialect}.{new}"', 1),)

    return make


for _name, _pairs in OTHERS.items():
    KINDS[_name] = _others([pair.split() for pair in _pairs.split(",")])


def _number(op: Op) -> re.Match[str] | None:
    if op.name not in ("constant", "full", "pad"):
        return None
    return re.search(r"(value = (?:dense<)?)(-?[\d.]+(?:[eE][+-]?\d+)?)(?=[ >])", op.attributes)


def _valued(op: Op, change: Callable[[float], float]) -> Iterator[Change]:
    found = _number(op)
    if found is not None:
        is_whole = re.fullmatch(r"-?\d+", found[2]) is not None
        old = float(found[2])
        new = change(old)
        line = op.edited(found[0], found[1] + (str(int(new)) if is_whole else f"{new:.6e}"))
        if line != op.line and (not is_whole or new == int(new)):
            yield (line,)


@kind("constant")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    if op.name != "pad":
        yield from _valued(op, lambda x: x + 1)


@kind("scale factor")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    found = _number(op)
    if op.name != "pad" and found is not None and not re.fullmatch(r"-?\d+", found[2]) and float(found[2]):
        yield from _valued(op, lambda x: x * 1.25)


@kind("pad value")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    if op.name == "pad":
        yield from _valued(op, lambda x: x + 1)


@kind("pad sides")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    found = _listed(op, "padding")
    if op.name == "pad" and found:
        p = [x for i in range(0, len(found[1]), 2) for x in found[1][i : i + 2][::-1]]
        if p != found[1]:
            yield (op.edited(found[0], _relisted(found[0], p)),)


@kind("cluster_axis")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    found = re.search(r"cluster_axis = ([01])", op.attributes)
    if found:
        yield (op.edited(found[0], f"cluster_axis = {1 - int(found[1])}"),)


@kind("reduce_type")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    found = re.search(r"reduce_type<(sum|max|min)>", op.attributes)
    if found:
        for other in ("sum", "max", "min"):
            if other != found[1]:
                yield (op.edited(found[0], f"reduce_type<{other}>"),)


@kind("collective dropped")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    if op.name in ("all_reduce", "collective_permute", "point_to_point") and op.types[-1] == op.made:
        yield op.results[0], op.operands[-1]


@kind("collective doubled")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    if op.name in ("all_reduce", "collective_permute"):
        again = op.called((op.results[0],)).replace(f"{op.results[0]} =", "%9001 =", 1)
        yield op.line, again


@kind("index shifted")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    if op.name in ("rows_gather", "rows_scatter", "slice_dynamic", "embedding", "gather", "scatter"):
        index, of = op.operands[1], op.types[1]
        fused = " <{activations = [], input_tensor_a_activations = [], input_tensor_b_activations = []}>"
        about = f"{fused if op.dialect == 'ttnn' else ''} : ({of}, {of}) -> {of} loc(#loc)"
        added = f'        %9001 = "{op.dialect}.add"({index}, {index}){about}'
        yield added, op.called((op.operands[0], "%9001", *op.operands[2:]))


@kind("clamp bound")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    if op.name == "clamp_scalar":
        for found in re.finditer(r"(max|min) = (-?[\d.]+(?:[eE][+-]?\d+)?) : (\w)", op.attributes):
            whole = found[3] != "f"
            new = str(int(found[2]) - 1) if whole else f"{float(found[2]) * 0.5 + 0.25:.6e}"
            yield (op.edited(found[0], f"{found[1]} = {new} : {found[3]}"),)


@kind("window")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    found = _listed(op, "padding")
    if op.name == "conv2d" and found and len(found[1]) == 4:
        # TTIR orders the sides top, left, bottom, right, and TTNN top, bottom, left, right.
        for i, j in ((0, 2), (1, 3)) if op.dialect == "ttir" else ((0, 1), (2, 3)):
            p = list(found[1])
            p[i], p[j] = p[i] + 1, p[j] - 1
            if p[j] >= 0:
                yield (op.edited(found[0], _relisted(found[0], p)),)
    if op.name == "conv2d" and op.dialect == "ttir":
        line = op.edited("height_dim = 1", "height_dim = 2")
        yield (line.replace("width_dim = 2", "width_dim = 1", 1),)


@kind("pairs of devices")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    found = re.search(r"source_target_pairs = dense<\[(.*?)\]\]", op.attributes)
    if found:
        pairs = re.findall(r"\[(\d+), (\d+)\]", found[0] + "]")
        new = ", ".join(f"[{b}, {a}]" for a, b in pairs)
        yield (op.edited(found[0], f"source_target_pairs = dense<[{new}]"),)
    side = ("receiver_coord", "sender_coord")[rng.integers(2)]
    old = _listed(op, side)
    if op.name == "point_to_point" and old:
        yield (op.edited(old[0], _relisted(old[0], [old[1][0], old[1][1] ^ 1])),)


@kind("transposed operand")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    if op.name == "matmul":
        for i, flag in enumerate(("transpose_a", "transpose_b")):
            if len(set(shape(op.types[i])[-2:])) == 1 and f"{flag} = " in op.attributes:
                old = re.search(rf"{flag} = (true|false)", op.attributes)
                assert old is not None
                yield (op.edited(old[0], f"{flag} = {'false' if old[1] == 'true' else 'true'}"),)
    if op.name == "dot_general":
        for i, side in enumerate(("lhs", "rhs")):
            dims, batch = _listed(op, f"contract_dims_{side}"), _listed(op, f"batch_dims_{side}")
            taken, size = batch[1] if batch else [], shape(op.types[i])
            if dims and len(dims[1]) == 1:
                for other in set(range(len(size))) - set(taken) - set(dims[1]):
                    if size[other] == size[dims[1][0]]:
                        yield (op.edited(dims[0], _relisted(dims[0], [other])),)


@kind("start of arange")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    if op.name == "arange":
        line = op.line
        for end in re.findall(r"(?:start|end) = -?\d+", op.attributes):
            line = line.replace(end, f"{end.split()[0]} = {int(end.split()[2]) + 1}", 1)
        yield (line,)


@kind("other value")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    if op.dialect == "ttnn" and rng.random() > 0.2:
        return
    i = int(rng.integers(max(len(op.operands), 1)))
    if len(op.types) != len(op.operands) or not op.operands or math.prod(shape(op.types[i])) < 8:
        return
    between = [x for x in text.ops if x.function == op.function and x.at < op.at and x.made == op.types[i]]
    others = [x.results[0] for x in between if x.results[0] != op.operands[i] and len(x.results) == 1]
    freed = {m[1] for x in text.lines[op.function : op.at] if (m := re.search(r"deallocate\"\((%\w+)\)", x))}
    if others := [x for x in others if x not in freed]:
        a = list(op.operands)
        a[i] = others[rng.integers(len(others))]
        yield (op.called(a),)


@kind("fused activation")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    found = re.search(r"op_type = (\w+)", op.attributes)
    if found:
        yield (op.edited(found[0], f"op_type = {'tanh' if found[1] != 'tanh' else 'sigmoid'}"),)


@kind("order of a sort")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    for word in ("descending", "largest"):
        if f"{word} = true" in op.attributes:
            yield (op.edited(f"{word} = true", f"{word} = false"),)


@kind("epsilon")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    if found := re.search(r"epsilon = [\d.eE+-]+", op.attributes):
        yield (op.edited(found[0], "epsilon = 5.000000e-01"),)


@kind("dim of a collective")
def _(op: Op, text: Text, rng: np.random.Generator) -> Iterator[Change]:
    names = {"all_gather": "all_gather_dim", "mesh_partition": "dim", "reduce_scatter": "scatter_dim"}
    found = re.search(rf"(?<!\w){names.get(op.name, '-')} = (\d+)", op.attributes)
    if found:
        for other in set(range(len(shape(op.types[0])))) - {int(found[1])}:
            yield (op.edited(found[0], f"{names[op.name]} = {other}"),)
