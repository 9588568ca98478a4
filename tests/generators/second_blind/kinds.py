"""The kinds of planted errors: each yields the ways in which an operation of a text can be made wrong."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

from tests.generators.blind.texts import Op, Text
from tests.generators.second_blind.edits import (
    NUMBER,
    Edit,
    element,
    is_float,
    made,
    numbers,
    placed,
    set_numbers,
    shape,
)

Kind = Callable[[Text, Op], Iterator[Edit]]
KINDS: dict[str, Kind] = {}
COMPARISONS = {"gt": "ge", "ge": "gt", "lt": "le", "le": "lt", "eq": "ge", "ne": "gt"}
ARITHMETIC = {"add": "subtract", "subtract": "add", "maximum": "minimum", "minimum": "maximum", "multiply": "add"}
CONNECTIVES = {"logical_and": "logical_or", "logical_or": "logical_and", "logical_not": "neg"}
UNARY = {
    "tanh": "sigmoid",
    "sigmoid": "tanh",
    "exp": "expm1",
    "log": "log1p",
    "log1p": "log",
    "sqrt": "rsqrt",
    "rsqrt": "reciprocal",
    "relu": "abs",
    "silu": "gelu",
    "gelu": "silu",
    "sin": "cos",
    "cos": "sin",
    "abs": "neg",
    "neg": "abs",
    "sign": "abs",
    "reciprocal": "neg",
}
ROUNDINGS = {"round": "floor", "floor": "ceil", "ceil": "floor", "typecast": "floor"}
SWAPPED = ("subtract", "div", "divide", "pow", "pow_tensor", "remainder", "gt", "ge", "lt", "le", "atan2")
ELEMENTWISE = {*ARITHMETIC, *UNARY, *SWAPPED, "where", "typecast", "round", "floor", "clamp_scalar"}
REDUCTIONS = ("sum", "max", "min", "mean", "argmax", "prod", "softmax", "cumsum", "sort", "topk", "cumprod")
SCALARS = r"\b(min|max|fill_value|value|rhs|exponent|epsilon|parameter|alpha|scale) = "
GATHERED = {"rows_gather": 1, "gather": 1, "embedding": 0, "take_along_axis": 1}


def kind(fun: Kind) -> Kind:
    KINDS[fun.__name__] = fun
    return fun


@kind
def other_permutation(text: Text, op: Op) -> Iterator[Edit]:
    if op.name == "permute" and (order := numbers(op.attributes, "permutation")):
        sizes = shape(op.types[0])
        for other in itertools.permutations(range(len(sizes))):
            if list(other) != order and tuple(sizes[i] for i in other) == shape(op.made):
                yield placed(text, op, made(op, attributes=set_numbers(op.attributes, "permutation", other)))


@kind
def shifted_slice(text: Text, op: Op) -> Iterator[Edit]:
    if op.name == "slice_static":
        begins, ends = numbers(op.attributes, "begins") or [], numbers(op.attributes, "ends") or []
        for i, size in enumerate(shape(op.types[0])):
            for by in (1, -1):
                if begins[i] + by >= 0 and ends[i] + by <= size:
                    first = [x + by * (i == j) for j, x in enumerate(begins)]
                    last = [x + by * (i == j) for j, x in enumerate(ends)]
                    attributes = set_numbers(set_numbers(op.attributes, "begins", first), "ends", last)
                    yield placed(text, op, made(op, attributes=attributes))


@kind
def strided_slice(text: Text, op: Op) -> Iterator[Edit]:
    if op.name == "slice_static":
        begins, ends = numbers(op.attributes, "begins") or [], numbers(op.attributes, "ends") or []
        steps = numbers(op.attributes, "step") or []
        for i, (size, kept) in enumerate(zip(shape(op.types[0]), shape(op.made), strict=True)):
            step = 2 if steps[i] == 1 else 1
            end = begins[i] + step * (kept - 1) + 1
            if kept > 1 and end <= size:
                attributes = set_numbers(op.attributes, "ends", [*ends[:i], end, *ends[i + 1 :]])
                attributes = set_numbers(attributes, "step", [*steps[:i], step, *steps[i + 1 :]])
                yield placed(text, op, made(op, attributes=attributes))


@kind
def reordered_concat(text: Text, op: Op) -> Iterator[Edit]:
    if op.name == "concat":
        for i, j in itertools.combinations(range(len(op.operands)), 2):
            if op.types[i] == op.types[j] and op.operands[i] != op.operands[j]:
                order = list(op.operands)
                order[i], order[j] = order[j], order[i]
                yield placed(text, op, made(op, operands=order))


@kind
def repeated_in_concat(text: Text, op: Op) -> Iterator[Edit]:
    if op.name == "concat":
        for i, j in itertools.permutations(range(len(op.operands)), 2):
            if op.types[i] == op.types[j] and op.operands[i] != op.operands[j]:
                order = list(op.operands)
                order[i] = order[j]
                yield placed(text, op, made(op, operands=order))


@kind
def unreduced(text: Text, op: Op) -> Iterator[Edit]:
    """Leaves out the reduction over devices: its readers read its operand, or a move takes its place."""
    if op.name in ("all_reduce", "reduce_scatter") and shape(op.made) == shape(op.types[0]):
        sizes = ", ".join(f"{x} : i32" for x in shape(op.made))
        yield placed(text, op, made(op, "reshape", attributes=f"shape = [{sizes}]"))
    if op.name == "all_reduce" and op.dialect == "ttir":
        at = {x - 1 for x in text.readers(op)}
        name = re.compile(rf"{re.escape(op.results[0])}\b(?!#)")
        lines = tuple(name.sub(op.operands[0], x) if i in at else x for i, x in enumerate(text.lines))
        yield Edit(lines, frozenset(at | {op.at}), op.at)


@kind
def own_part_repeated(text: Text, op: Op) -> Iterator[Edit]:
    """Repeats the part of each device in place of gathering those of all."""
    dim = numbers(op.attributes, "all_gather_dim")
    if op.name == "all_gather" and dim:
        size = shape(op.made)[dim[0]] // shape(op.types[0])[dim[0]]
        parts = {"operands": op.operands * size, "types": op.types * size}
        yield placed(text, op, made(op, "concat", attributes=f"dim = {dim[0]} : si32", **parts))


@kind
def unreduced_part(text: Text, op: Op) -> Iterator[Edit]:
    """Takes the first part of the operand in place of a reduction that scatters."""
    if op.name == "reduce_scatter":
        lists = {"begins": [0] * len(shape(op.made)), "ends": shape(op.made), "step": [1] * len(shape(op.made))}
        attributes = ", ".join(f"{k} = [{', '.join(f'{x} : i32' for x in v)}]" for k, v in lists.items())
        yield placed(text, op, made(op, "slice_static", attributes=attributes))


@kind
def other_cluster_axis(text: Text, op: Op) -> Iterator[Edit]:
    if axis := numbers(op.attributes, "cluster_axis"):
        yield placed(text, op, made(op, attributes=set_numbers(op.attributes, "cluster_axis", [1 - axis[0]])))


@kind
def other_reduce_type(text: Text, op: Op) -> Iterator[Edit]:
    for old, new in (("sum", "max"), ("sum", "min"), ("max", "sum"), ("min", "max")):
        if f"reduce_type<{old}>" in op.attributes:
            attributes = op.attributes.replace(f"reduce_type<{old}>", f"reduce_type<{new}>")
            yield placed(text, op, made(op, attributes=attributes))


@kind
def other_dim(text: Text, op: Op) -> Iterator[Edit]:
    for key in ("dim_arg", "dim", "dimension", "scatter_dim", "all_gather_dim"):
        if op.name in (*REDUCTIONS, "mesh_partition", "reduce_scatter", "all_gather"):
            old, rank = numbers(op.attributes, key), len(shape(op.types[0]))
            for new in itertools.combinations(range(rank), len(old)) if old else ():
                same = all(
                    shape(op.types[0])[a % rank] == shape(op.types[0])[b] for a, b in zip(old or (), new, strict=True)
                )
                free = op.name in ("softmax", "cumsum", "cumprod", "sort")
                if list(new) != [x % rank for x in old or ()] and (same or free):
                    yield placed(text, op, made(op, attributes=set_numbers(op.attributes, key, new)))


@kind
def other_reduction(text: Text, op: Op) -> Iterator[Edit]:
    others = {"sum": ("max", "mean"), "mean": ("sum", "max"), "max": ("min", "sum"), "min": ("max",), "argmax": ()}
    for other in others.get(op.name, ()):
        yield placed(text, op, made(op, other))


@kind
def swapped_operands(text: Text, op: Op) -> Iterator[Edit]:
    if op.name in SWAPPED and op.operands[0] != op.operands[1]:
        yield placed(text, op, made(op, operands=op.operands[::-1], types=op.types[::-1]))
    if op.name in ("matmul", "dot_general", "linear") and len(set(op.types)) == 1 and op.operands[0] != op.operands[1]:
        yield placed(text, op, made(op, operands=op.operands[::-1]))


def _constants(op: Op) -> Iterator[tuple[re.Match[str], float]]:
    if op.name in ("constant", "full"):
        pattern = r"(?:dense<|fill_value = )(-?\d[\d.e+-]*|0xFF800000|0xFF80)(?=[>:, ])"
        if found := re.search(pattern, op.attributes):
            is_bits = found[1].startswith("0x")
            yield found, float("-inf") if is_bits else float(found[1])


def _with(text: Text, op: Op, found: re.Match[str], new: float) -> Edit:
    written = f"{new:e}" if is_float(op.made) else str(int(new))
    attributes = op.attributes[: found.start(1)] + written + op.attributes[found.end(1) :]
    return placed(text, op, made(op, attributes=attributes))


@kind
def other_constant(text: Text, op: Op) -> Iterator[Edit]:
    for found, value in _constants(op):
        if 1e-2 < abs(value) < 1e3:
            yield _with(text, op, found, value + 1)
            yield _with(text, op, found, -value)
            if is_float(op.made):
                yield _with(text, op, found, value * 0.8)


@kind
def other_small_constant(text: Text, op: Op) -> Iterator[Edit]:
    for found, value in _constants(op):
        if 0 < abs(value) <= 1e-2:
            yield _with(text, op, found, 0.05)
            yield _with(text, op, found, value * 1000)


@kind
def other_mask_value(text: Text, op: Op) -> Iterator[Edit]:
    for found, value in _constants(op):
        if value <= -1e3 or (value == 0 and is_float(op.made)):
            yield _with(text, op, found, 0.0 if value else -3.0)


@kind
def ones_for_zeros(text: Text, op: Op) -> Iterator[Edit]:
    if op.name in ("zeros", "ones"):
        yield placed(text, op, made(op, "ones" if op.name == "zeros" else "zeros"))
    for old, new in (("true", "false"), ("false", "true")):
        if op.name == "constant" and f"dense<{old}>" in op.attributes:
            yield placed(text, op, made(op, attributes=op.attributes.replace(old, new)))


@kind
def other_element(text: Text, op: Op) -> Iterator[Edit]:
    """Changes one element of a constant of several."""
    found = re.search(r"dense<(\[.*\])>", op.attributes) if op.name == "constant" else None
    places = list(NUMBER.finditer(found[1])) if found else []
    for place in places[:: max(1, len(places) // 3)]:
        assert found is not None
        new = f"{float(place[0]) + 1:e}" if is_float(op.made) else str(int(float(place[0])) + 1)
        start = found.start(1) + place.start()
        attributes = op.attributes[:start] + new + op.attributes[start + len(place[0]) :]
        yield placed(text, op, made(op, attributes=attributes))


@kind
def other_scalar(text: Text, op: Op) -> Iterator[Edit]:
    """Changes a number among the attributes: a bound, an exponent, an epsilon, a slope."""
    if op.name in ("full", "constant"):
        return
    for found in re.finditer(SCALARS + rf"({NUMBER.pattern})", op.attributes):
        value = float(found[2])
        new = value * 0.5 + 1.0
        written = f"{new:e}" if re.search(r"[.e]", found[2]) else str(round(value) + 1)
        yield placed(
            text, op, made(op, attributes=op.attributes[: found.start(2)] + written + op.attributes[found.end(2) :])
        )


@kind
def other_comparison(text: Text, op: Op) -> Iterator[Edit]:
    if op.name in COMPARISONS:
        yield placed(text, op, made(op, COMPARISONS[op.name]))


@kind
def swapped_branches(text: Text, op: Op) -> Iterator[Edit]:
    if op.name == "where" and op.operands[1] != op.operands[2]:
        (c, a, b), (s, t, u) = op.operands, op.types
        yield placed(text, op, made(op, operands=(c, b, a), types=(s, u, t)))


@kind
def other_function(text: Text, op: Op) -> Iterator[Edit]:
    if op.name in UNARY:
        yield placed(text, op, made(op, UNARY[op.name], attributes=""))
    if found := re.search(r'activation = "(\w+)"', op.attributes):
        other = {"relu": "gelu", "gelu": "relu", "silu": "sigmoid"}.get(found[1], "relu")
        yield placed(text, op, made(op, attributes=op.attributes.replace(found[0], f'activation = "{other}"')))


@kind
def other_rounding(text: Text, op: Op) -> Iterator[Edit]:
    if op.name in ("round", "floor", "ceil"):
        yield placed(text, op, made(op, ROUNDINGS[op.name]))
    if op.name == "typecast" and is_float(op.types[0]) and re.fullmatch(r"[us]?i\d+", element(op.made)):
        first = made(op, "ceil", results="%planted", attributes="", made=op.types[0])
        yield placed(text, op, first, made(op, operands=("%planted",)))


@kind
def truncated(text: Text, op: Op) -> Iterator[Edit]:
    """Rounds the first operand down to an integer."""
    if op.name in ("add", "multiply", "subtract", "matmul", "dot_general") and is_float(op.types[0]):
        first = made(
            op,
            "floor",
            results="%planted",
            operands=op.operands[:1],
            attributes="",
            types=op.types[:1],
            made=op.types[0],
        )
        yield placed(text, op, first, made(op, operands=("%planted", *op.operands[1:])))


@kind
def other_arithmetic(text: Text, op: Op) -> Iterator[Edit]:
    if op.name in ARITHMETIC:
        yield placed(text, op, made(op, ARITHMETIC[op.name]))


@kind
def other_connective(text: Text, op: Op) -> Iterator[Edit]:
    if op.name in ("logical_and", "logical_or", "bitwise_and", "bitwise_or"):
        first, second = op.name.rsplit("_", 1)
        yield placed(text, op, made(op, f"{first}_{'or' if second == 'and' else 'and'}"))


@kind
def transposed_operand(text: Text, op: Op) -> Iterator[Edit]:
    if op.name in ("matmul", "linear"):
        for i, flag in enumerate(("transpose_a", "transpose_b")):
            sizes = shape(op.types[i])
            if len(sizes) >= 2 and sizes[-1] == sizes[-2]:
                if f"{flag} = true" in op.attributes:
                    attributes = op.attributes.replace(f"{flag} = true", f"{flag} = false")
                elif f"{flag} = false" in op.attributes:
                    attributes = op.attributes.replace(f"{flag} = false", f"{flag} = true")
                else:
                    attributes = f"{op.attributes}, {flag} = true".removeprefix(", ")
                yield placed(text, op, made(op, attributes=attributes))


@kind
def other_contraction(text: Text, op: Op) -> Iterator[Edit]:
    if op.name == "dot_general":
        for i, side in enumerate(("lhs", "rhs")):
            held = numbers(op.attributes, f"batch_dims_{side}") or []
            old, sizes = numbers(op.attributes, f"contract_dims_{side}") or [], shape(op.types[i])
            for dim in range(len(sizes)):
                if len(old) == 1 and dim not in (*held, *old) and sizes[dim] == sizes[old[0]]:
                    attributes = set_numbers(op.attributes, f"contract_dims_{side}", [dim])
                    yield placed(text, op, made(op, attributes=attributes))


@kind
def other_padding(text: Text, op: Op) -> Iterator[Edit]:
    """Shifts the padding by an element, of `pad`, convolutions and pools; or fills it with another number."""
    old = numbers(op.attributes, "padding") or []
    pairs = [(2 * i, 2 * i + 1) for i in range(len(old) // 2)] if op.name == "pad" else [(0, 2), (1, 3)]
    for i, j in pairs:
        for a, b in ((i, j), (j, i)):
            if len(old) >= 4 and old[a] > 0:
                new = [x - (k == a) + (k == b) for k, x in enumerate(old)]
                yield placed(text, op, made(op, attributes=set_numbers(op.attributes, "padding", new)))
    if op.name == "pad" and any(old) and (value := re.search(rf"value = ({NUMBER.pattern})", op.attributes)):
        new = "1.000000e+00" if float(value[1]) == 0 else "0.000000e+00"
        yield placed(text, op, made(op, attributes=op.attributes.replace(value[0], f"value = {new}")))


@kind
def other_dilation(text: Text, op: Op) -> Iterator[Edit]:
    """Spreads the kernel or draws it together, and pads for the same shape."""
    dilation, padding = numbers(op.attributes, "dilation") or [], numbers(op.attributes, "padding") or []
    if op.name == "conv2d" and len(padding) == 4:
        for old, new in ((1, 2), (2, 1), (4, 2)):
            for dims in ([0], [1], [0, 1]):
                if all(dilation[d] == old for d in dims):
                    spread = [new if d in dims else x for d, x in enumerate(dilation)]
                    wide = [x * new // old if d % 2 in dims else x for d, x in enumerate(padding)]
                    if wide != padding:
                        attributes = set_numbers(set_numbers(op.attributes, "dilation", spread), "padding", wide)
                        yield placed(text, op, made(op, attributes=attributes))


@kind
def other_pairs(text: Text, op: Op) -> Iterator[Edit]:
    if found := re.search(r"source_target_pairs = dense<(\[\[.*?\]\])>", op.attributes):
        pairs = [(int(a), int(b)) for a, b in re.findall(r"\[?(\d+), (\d+)\]", found[1])]
        turned = [(b, a) for a, b in pairs]
        targets = [b for _, b in pairs]
        rolled = [(a, b) for (a, _), b in zip(pairs, targets[1:] + targets[:1], strict=True)]
        swapped = [(a, targets[i ^ 1] if i ^ 1 < len(targets) else targets[i]) for i, (a, _) in enumerate(pairs)]
        for new in (turned, rolled, swapped):
            if sorted(new) != sorted(pairs):
                listed = ", ".join(f"[{a}, {b}]" for a, b in new)
                attributes = op.attributes[: found.start(1)] + f"[{listed}]" + op.attributes[found.end(1) :]
                yield placed(text, op, made(op, attributes=attributes))


@kind
def other_partner(text: Text, op: Op) -> Iterator[Edit]:
    if op.name == "point_to_point":
        a, b = numbers(op.attributes, "receiver_coord") or [], numbers(op.attributes, "sender_coord") or []
        attributes = set_numbers(set_numbers(op.attributes, "receiver_coord", b), "sender_coord", a)
        yield placed(text, op, made(op, attributes=attributes))
        yield placed(text, op, made(op, attributes=set_numbers(op.attributes, "sender_coord", a)))


@kind
def other_operand(text: Text, op: Op) -> Iterator[Edit]:
    """Reads another value of the same type, one of the last before."""
    earlier = [x for x in text.ops if x.function == op.function and x.at < op.at and len(x.results) == 1]
    freed = {
        y
        for line in text.lines[op.function : op.at]
        if "deallocate" in line
        for y in re.findall(r'"\((%[\w#]+)\)', line)
    }
    for i, (_, tensor) in enumerate(zip(op.operands, op.types, strict=False)):
        same = [x.results[0] for x in earlier if x.made == tensor and x.results[0] not in freed]
        for other in same[-3:]:
            if other not in op.operands:
                yield placed(text, op, made(op, operands=(*op.operands[:i], other, *op.operands[i + 1 :])))


@kind
def shifted_range(text: Text, op: Op) -> Iterator[Edit]:
    if op.name == "arange":
        start, end = numbers(op.attributes, "start") or [0], numbers(op.attributes, "end") or [0]
        attributes = set_numbers(set_numbers(op.attributes, "start", [start[0] + 1]), "end", [end[0] + 1])
        yield placed(text, op, made(op, attributes=attributes))


@kind
def doubled_index(text: Text, op: Op) -> Iterator[Edit]:
    if op.name in GATHERED:
        i = GATHERED[op.name]
        one = op.operands[i], op.types[i]
        first = made(op, "add", results="%planted", operands=one[:1] * 2, attributes="", types=one[1:] * 2, made=one[1])
        yield placed(text, op, first, made(op, operands=(*op.operands[:i], "%planted", *op.operands[i + 1 :])))


@kind
def applied_twice(text: Text, op: Op) -> Iterator[Edit]:
    if (
        len(op.results) == 1
        and op.types
        and op.types[0] == op.made
        and op.name not in ("reshape", "to_layout", "typecast")
    ):
        second = made(op, operands=("%planted", *op.operands[1:]))
        yield placed(text, op, made(op, results="%planted"), second, wrong=(0, 1), at=1)


@kind
def left_out(text: Text, op: Op) -> Iterator[Edit]:
    """Moves the first operand in place of an operation by element."""
    if op.name in ELEMENTWISE and op.types[0] == op.made:
        sizes = ", ".join(f"{x} : i32" for x in shape(op.made))
        parts = {"operands": op.operands[:1], "types": op.types[:1]}
        yield placed(text, op, made(op, "reshape", attributes=f"shape = [{sizes}]", **parts))


@kind
def stray_transposition(text: Text, op: Op) -> Iterator[Edit]:
    """Transposes the first operand, whose last two dims are of one size."""
    sizes = shape(op.types[0]) if op.types else ()
    if (
        len(sizes) >= 2
        and sizes[-1] == sizes[-2] > 1
        and op.name in (*ELEMENTWISE, "matmul", "dot_general", "slice_static")
    ):
        order = ", ".join(str(x) for x in (*range(len(sizes) - 2), len(sizes) - 1, len(sizes) - 2))
        parts = {"operands": op.operands[:1], "types": op.types[:1], "made": op.types[0]}
        first = made(op, "permute", results="%planted", attributes=f"permutation = array<i64: {order}>", **parts)
        yield placed(text, op, first, made(op, operands=("%planted", *op.operands[1:])))


@kind
def other_order(text: Text, op: Op) -> Iterator[Edit]:
    for flag in ("descending", "largest", "column"):
        for old, new in (("true", "false"), ("false", "true")):
            if op.name in ("sort", "topk", "argsort") and f"{flag} = {old}" in op.attributes:
                yield placed(text, op, made(op, attributes=op.attributes.replace(f"{flag} = {old}", f"{flag} = {new}")))


@kind
def other_exchange(text: Text, op: Op) -> Iterator[Edit]:
    """Swaps devices of the groups of an exchange, or its dims."""
    if op.name == "all_to_all" and (found := re.search(r"replica_groups = dense<(\[\[.*?\]\])>", op.attributes)):
        groups = [[int(x) for x in row.split(",")] for row in re.findall(r"\[([\d, ]+)\]", found[1])]
        listed = ", ".join(str([*x[1:], x[0]]) for x in groups)
        yield placed(text, op, made(op, attributes=op.attributes.replace(found[1], f"[{listed}]")))
        split, concat = numbers(op.attributes, "split_dim") or [0], numbers(op.attributes, "concat_dim") or [0]
        attributes = set_numbers(set_numbers(op.attributes, "split_dim", concat), "concat_dim", split)
        if split != concat:
            yield placed(text, op, made(op, attributes=attributes))


@kind
def other_repetition(text: Text, op: Op) -> Iterator[Edit]:
    """Repeats whole parts where elements are repeated: `repeat_interleave` becomes `repeat`."""
    if op.name == "repeat_interleave":
        dim, count = numbers(op.attributes, "dim") or [0], numbers(op.attributes, "repeats") or [1]
        sizes = [count[0] if i == dim[0] else 1 for i in range(len(shape(op.made)))]
        attributes = f"repeat_dims = #ttnn.shape<{'x'.join(map(str, sizes))}>"
        if op.dialect == "ttir":
            attributes = f"repeat_dimensions = array<i64: {', '.join(map(str, sizes))}>"
        yield placed(text, op, made(op, "repeat", attributes=attributes))
