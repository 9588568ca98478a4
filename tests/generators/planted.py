"""Errors planted in texts with local shapes, as Tenstorrent's compiler prints them, in TTIR and in TTNN."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

_OP = re.compile(r'^\s*%(?P<result>\w+) = "(?P<op>[\w.]+)"\((?P<operands>[^)]*)\)(?P<rest>.*)$')
_RESULT = re.compile(r"-> tensor<(?P<shape>(?:\d+x)*)(?P<element>\w+)(?P<layout>[^>]*)>(?P<after>[^>]*)$")
_ARGUMENT = re.compile(r"%(arg\w+): (tensor<[^>]*>)")
_MOVES = ("reshape", "typecast", "to_layout", "to_device", "permute", "all_reduce")
_SCALED = ("dot_general", "matmul", "linear", "add", "multiply", "tanh", "exp", "subtract", "softmax", "silu", "gelu")
_SCALE = 1 + 2.0**-8
"""As far from 1 as a number that bfloat16 rounds to 1."""


@dataclass(frozen=True)
class Planted:
    """A text with an error.

    Attributes:
      kind: the kind of the error.
      text: the text.
      lines: the lines of the text where the error may be named.
      rounding: True if it is none, but a rounding.
    """

    kind: str
    text: str
    lines: frozenset[int]
    rounding: bool = False


@dataclass(frozen=True)
class Op:
    """One operation of the function `main`, with its line."""

    line: int
    result: str
    name: str
    operands: tuple[str, ...]


class Writer:
    """The lines of a text, which are changed within its first public function alone."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        heads = [i for i, line in enumerate(self.lines) if "func.func" in line and "private" not in line]
        self.begin = heads[0]
        self.end = next(i for i in range(self.begin, len(self.lines)) if self.lines[i].lstrip().startswith("return"))
        self.dialect = "ttnn" if '"ttnn.' in text else "ttir"
        sizes = re.search(r'<"mesh" = ([\dx]+)>', text)
        self.mesh = [int(n) for n in sizes[1].split("x")] if sizes else [1, 1]
        self.ops = list(self._read())

    def _read(self) -> Iterator[Op]:
        depth = None
        for i in range(self.begin, self.end):
            found = _OP.match(self.lines[i])
            indent = len(self.lines[i]) - len(self.lines[i].lstrip())
            depth = indent if depth is None and found else depth
            if found and indent == depth:
                names = [v.strip().lstrip("%") for v in found["operands"].split(",")]
                yield Op(i, found["result"], found["op"].partition(".")[2], tuple(filter(None, names)))

    def type_of(self, op: Op) -> str:
        found = re.search(r"-> (tensor<[^>]*>)", self.lines[op.line])
        return found[1] if found else ""

    # --- changed texts ------------------------------------------------------------------------------------------------

    def with_line(self, at: int, line: str) -> list[str]:
        return [*self.lines[:at], line, *self.lines[at + 1 :]]

    def renamed(self, old: str, new: str, after: int) -> list[str]:
        """Returns the lines with another value read after a line."""
        pattern = re.compile(rf"%{old}\b(?!\s*=)")
        inside = range(after + 1, self.end + 1)
        return [pattern.sub(f"%{new}", line) if i in inside else line for i, line in enumerate(self.lines)]

    def inserted(self, old: str, after: int, new: Sequence[str]) -> list[str]:
        """Returns the lines with operations after a line, whose last one, `%planted`, is read in place of a value."""
        lines = self.renamed(old, "planted", after)
        return [*lines[: after + 1], *new, *lines[after + 1 :]]

    def without(self, op: Op) -> list[str]:
        """Returns the lines without an operation, whose operand is read in place of its result."""
        operand = op.operands[0]
        lines = self.renamed(op.result, operand, op.line)
        freed = [i for i in range(op.line, self.end) if f'"ttnn.deallocate"(%{operand})' in lines[i]]
        return [line for i, line in enumerate(lines) if i != op.line and i not in freed[:-1]]


def plant(text: str) -> Iterator[Planted]:
    """Yields every error of every kind that can be planted in a text."""
    writer = Writer(text)
    for kind, lines, at, rounding in _errors(writer):
        yield Planted(kind, "\n".join(lines), frozenset(i + 1 for i in at), rounding)


Change = tuple[str, list[str], Sequence[int], bool]


def _errors(w: Writer) -> Iterator[Change]:
    for number, op in enumerate(w.ops):
        line = w.lines[op.line]
        if op.name == "all_reduce":
            yield (
                "dropped all_reduce",
                w.without(op),
                [*_makers(w, op.operands[0]), *_after_dropped(w, op)],
                False,
            )
        if op.name == "all_reduce" and len(w.mesh) > 1:
            other = re.sub(r"cluster_axis = (\d)", lambda n: f"cluster_axis = {(int(n[1]) + 1) % len(w.mesh)}", line)
            yield "wrong cluster_axis", w.with_line(op.line, other), [op.line, *_reductions_after(w, op)], False
        if op.name == "slice_static" and (shifted := _shifted(line)):
            yield "shifted slice", w.with_line(op.line, shifted), [op.line], False
        if op.name in ("pad", "conv2d") and (padded := _padded(line, op.name, w.dialect)):
            yield "wrong pad", w.with_line(op.line, padded), [op.line], False
        if op.name == "all_gather":
            yield from _swapped_gathers(w, number)
        if op.name in _SCALED and (kind := _RESULT.search(line)) and kind["element"] == "f32":
            yield "no rounding", *_scaled(w, op, kind), False
            yield "rounding", *_rounded(w, op, kind), True
    yield from _permuted_weights(w)


def _makers(w: Writer, value: str) -> list[int]:
    """Returns the lines of the operation of a value, and of those that it is a movement of."""
    made, found = {op.result: op for op in w.ops}, list[int]()
    while value in made:
        found.append(made[value].line)
        if made[value].name not in _MOVES:
            break
        value = made[value].operands[0]
    return found


def _reductions_after(w: Writer, op: Op, by: int = 0) -> list[int]:
    """Returns the lines of further reductions of a result: reductions over two axes may come in either order."""
    value, found = op.result, list[int]()
    while reader := next((o for o in w.ops if value in o.operands and o.name in _MOVES), None):
        found += [reader.line + by] if reader.name == "all_reduce" else []
        value = reader.result
    return found


def _after_dropped(w: Writer, op: Op) -> list[int]:
    """Returns the lines of the first operation that computes with what a dropped operation read, or the return of it,
    of the movements up to it, and of further reductions."""
    by = len(w.without(op)) - len(w.lines)
    value, readers = op.result, list[int]()
    while reader := next((o for o in w.ops if value in o.operands and o.name != "deallocate"), None):
        readers.append(reader.line + by)
        value = reader.result if reader.name in _MOVES else ""
    readers += [w.end + by] if value else []
    return [*readers, *_reductions_after(w, op, by)]


def _numbers(line: str, name: str) -> list[int]:
    found = re.search(rf"\b{name} = (?:array<i\d+: ([^>]*)>|\[([^\]]*)\])", line)
    return (
        [int(n) for n in re.findall(r"(-?\d+)(?: : i32)?", (found[1] or found[2]).replace("i32", ""))] if found else []
    )


def _shifted(line: str) -> str | None:
    begins, ends, step = (_numbers(line, k) for k in ("begins", "ends", "step"))
    shape = [int(n) for n in re.search(r": \(tensor<([\dx]+)x", line)[1].split("x")]  # type: ignore[index]
    for d, (b, e, n) in enumerate(zip(begins, ends, shape, strict=True)):
        by = 1 if e < n else -1 if b > 0 else 0
        if by and step[d] == 1:
            begins[d], ends[d] = b + by, e + by
            for key, values in (("begins", begins), ("ends", ends)):
                line = re.sub(rf"{key} = \[[^\]]*\]", f"{key} = [{', '.join(f'{v} : i32' for v in values)}]", line)
            return line
    return None


def _padded(line: str, name: str, dialect: str) -> str | None:
    """Returns a padding with an element more at one side, and less at the other."""
    found = _numbers(line, "padding")
    if len(found) % 2 or (name == "conv2d" and len(found) != 4):
        return None
    # TTIR's convolution lists both starts before both ends.
    pairs = [(0, 2), (1, 3)] if (name, dialect) == ("conv2d", "ttir") else [(i, i + 1) for i in range(0, len(found), 2)]
    for low, high in pairs:
        if found[low] or found[high]:
            by = 1 if found[low] else -1
            found[low], found[high] = found[low] - by, found[high] + by
            return re.sub(r"\bpadding = array<i32: [^>]*>", f"padding = array<i32: {', '.join(map(str, found))}>", line)
    return None


# --- gathers ---------------------------------------------------------------------------------------------------------


def _swapped_gathers(w: Writer, number: int) -> Iterator[Change]:
    """Yields two gathers in the other order, with each other's axes, or with each other's results."""
    op = w.ops[number]
    for other in w.ops[number + 1 :]:
        if other.name != "all_gather":
            continue
        lines = w.lines[op.line], w.lines[other.line]
        if op.result in other.operands:
            both = _in_other_order(*lines)
            if both:
                new = w.with_line(op.line, both[0])
                new[other.line] = both[1]
                yield "swapped gathers", new, [op.line, other.line], False
        elif w.type_of(op) == w.type_of(other) and op.operands != other.operands:
            both = _read_by_each_other(w, op, other)
            if both:
                readers = [o.line for o in w.ops if {op.result, other.result} & set(o.operands)]
                yield "exchanged gathers", both, [op.line, other.line, *readers[:1]], False
        break


def _read_by_each_other(w: Writer, op: Op, other: Op) -> list[str] | None:
    """Returns two gathers of each other's operands, where both are known before the first."""
    (a,), (b,) = op.operands, other.operands
    made = next((o.line for o in w.ops if o.result == b), -1)
    if made > op.line:
        return None
    new = w.with_line(op.line, w.lines[op.line].replace(f"(%{a})", f"(%{b})"))
    new[other.line] = w.lines[other.line].replace(f"(%{b})", f"(%{a})")
    freed = [i for i in range(op.line, other.line) if f'"ttnn.deallocate"(%{a})' in new[i]]
    for i in freed:
        new[i] = ""
    return new


def _in_other_order(first: str, second: str) -> tuple[str, str] | None:
    """Returns two gathers over each other's axes, the second of the first's result."""
    dims = [int(re.search(r"all_gather_dim = (\d+)", x)[1]) for x in (first, second)]  # type: ignore[index]
    axes = [int(re.search(r"cluster_axis = (\d+)", x)[1]) for x in (first, second)]  # type: ignore[index]
    shapes = [[int(n) for n in s.split("x")] for x in (first, second) for s in re.findall(r"tensor<([\dx]+)x\w", x)]
    if axes[0] == axes[1]:
        return None
    factors = [shapes[1][dims[0]] // shapes[0][dims[0]], shapes[3][dims[1]] // shapes[2][dims[1]]]
    if dims[0] != dims[1] and factors[0] != factors[1]:
        return None
    kind = re.search(r"tensor<[\dx]+x(\w+)", first)[1]  # type: ignore[index]
    old = f"tensor<{'x'.join(map(str, shapes[1]))}x{kind}"
    shapes[1][dims[0]] = shapes[0][dims[0]] * factors[1]
    new = f"tensor<{'x'.join(map(str, shapes[1]))}x{kind}"
    first = first.replace(f"cluster_axis = {axes[0]}", f"cluster_axis = {axes[1]}")
    second = second.replace(f"cluster_axis = {axes[1]}", f"cluster_axis = {axes[0]}")
    before, _, after = first.rpartition(old)
    return before + new + after, second.replace(old, new, 1)


# --- permuted shards -------------------------------------------------------------------------------------------------


def _permuted_weights(w: Writer) -> Iterator[Change]:
    """Yields each argument with its shards sent around along one mesh axis."""
    for name, kind in _ARGUMENT.findall(w.lines[w.begin]):
        value, line, held = name, w.begin, kind
        while op := next((o for o in w.ops if value in o.operands and _places(w, o)), None):
            value, line, held = op.result, op.line, w.type_of(op)
        after = re.search(r" loc\([^)]*\)$", w.lines[line])
        for axis, size in enumerate(w.mesh):
            if size > 1:
                new = _sent_around(w, value, held, axis, after[0] if after and line != w.begin else "")
                yield "permuted weight", w.inserted(value, line, new), range(line + 1, line + 1 + len(new)), False


_SPLIT = ("mesh_shard", "distribute_tensor")
_PLACED = (*_SPLIT, "to_device", "to_layout")


def _places(w: Writer, op: Op) -> bool:
    """Returns True for an operation that places an argument; only devices can exchange its shards."""
    split = any(op.result in o.operands and o.name in _SPLIT for o in w.ops)
    return op.name in _PLACED or (op.name == "reshape" and split)


def _sent_around(w: Writer, value: str, kind: str, axis: int, after: str) -> list[str]:
    ids = np.arange(np.prod(w.mesh)).reshape(w.mesh)
    pairs = np.stack([ids, np.roll(ids, 1, axis)], -1).reshape(-1, 2).tolist()
    if w.dialect == "ttir":
        written = f"dense<{pairs}> : tensor<{len(pairs)}x2xi64>"
        attributes = f"<{{source_target_pairs = {written}}}>"
        return [f'    %planted = "ttir.collective_permute"(%{value}) {attributes} : ({kind}) -> {kind}{after}']
    lines = [f'    %sent_0 = "ttnn.assign"(%{value}) : ({kind}) -> {kind}{after}']
    for i, pair in enumerate(pairs):
        sender, receiver = (", ".join(str(int(c)) for c in np.unravel_index(n, w.mesh)) for n in pair)
        name = "planted" if i + 1 == len(pairs) else f"sent_{i + 1}"
        lines.append(
            f'    %{name} = "ttnn.point_to_point"(%{value}, %sent_{i}) <{{receiver_coord = array<i64: {receiver}>, '
            f"sender_coord = array<i64: {sender}>}}> : ({kind}, {kind}) -> {kind}{after}"
        )
    return lines


# --- roundings -------------------------------------------------------------------------------------------------------


def _scaled(w: Writer, op: Op, kind: re.Match[str]) -> tuple[list[str], list[int]]:
    """Multiplies a value by a number as near to 1 as the rounding of bfloat16: the number and the product are wrong."""
    dims = kind["shape"].rstrip("x").split("x") if kind["shape"] else []
    whole = f"tensor<{kind['shape']}f32{kind['layout']}>"
    product = (
        f'    %planted = "{w.dialect}.multiply"(%{op.result}, %scale) : ({whole}, {whole}) -> {whole}{kind["after"]}'
    )
    if w.dialect == "ttir":
        shape = f"array<i32: {', '.join(dims)}>" if dims else "array<i32>"
        made = [f'"ttir.full"() <{{fill_value = {_SCALE} : f32, shape = {shape}}}> : () -> {whole}{kind["after"]}']
    else:
        sizes = "x".join(map(str, w.mesh))
        where = (
            f"mesh_offset = #ttnn<mesh_offset {'x'.join('0' for _ in w.mesh)}>, mesh_shape = #ttnn<mesh_shape {sizes}>"
        )
        made = [
            f'"ttnn.get_device"() <{{{where}}}> : () -> !ttnn.device',
            f'"ttnn.full"(%there) <{{fill_value = {_SCALE} : f32, shape = #ttnn.shape<{"x".join(dims)}>}}> : '
            f"(!ttnn.device) -> {whole}{kind['after']}",
        ]
    names = ["there", "scale"][-len(made) :]
    new = [*(f"    %{name} = {text}" for name, text in zip(names, made, strict=True)), product]
    return w.inserted(op.result, op.line, new), [op.line + len(new) - 1, op.line + len(new)]


def _rounded(w: Writer, op: Op, kind: re.Match[str]) -> tuple[list[str], list[int]]:
    """Rounds a value to bfloat16."""
    whole, layout = f"tensor<{kind['shape']}f32{kind['layout']}>", kind["layout"].strip(", ")
    known = next((line for line in w.lines if layout and line.startswith(f"{layout} = ")), "")
    narrow = f"tensor<{kind['shape']}bf16{', #planted_layout' if known else ''}>"
    new = [
        f'    %narrow = "{w.dialect}.typecast"(%{op.result}) : ({whole}) -> {narrow}{kind["after"]}',
        f'    %planted = "{w.dialect}.typecast"(%narrow) : ({narrow}) -> {whole}{kind["after"]}',
    ]
    lines = w.inserted(op.result, op.line, new)
    if known:
        lines[0] = f"#planted_layout = {known.partition(' = ')[2].replace('f32', 'bf16')}\n{lines[0]}"
    return lines, [op.line + 1 + bool(known)]
