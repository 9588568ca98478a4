"""Rewrites a program as XLA does around Shardy, whose rules depend on the form of an op.

Before, ops get the form that Shardy splits. After, a matrix product is split in the cheaper of two ways. Where only one
operand is split along a contracted dim, Shardy slices the other one and reduces; XLA gathers the split operand where
that moves less, as in the product of a tall and a wide matrix. A slice of a split dim, too, is made in the cheaper of
two ways, and a reshard of a value that a loop does not change moves before the loop.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxmesh.frontends.mlir.module import producer
from jaxmesh.frontends.stablehlo import shardings
from jaxmesh.frontends.stablehlo.control_flow import find_counter, integers_of
from jaxmesh.frontends.stablehlo.gspmd import create, replace
from jaxmesh.frontends.stablehlo.reductions import dot_dims
from jaxmesh.frontends.stablehlo.shapes import split_slice
from jaxmesh.frontends.stablehlo.shardings import OWN, SHARDING, WRITTEN, Sharding, count, local_shape, requested
from jaxmesh.frontends.stablehlo.values import moved_elements


def simplify(body: Sequence[ir.Operation]) -> None:
    """Rewrites ops of a function."""
    for op in body:
        if op.name == "stablehlo.broadcast_in_dim":
            _reshape_broadcast(op)
        elif op.name == "stablehlo.dynamic_slice":
            _slice_at_constants(op)
        elif op.name == "stablehlo.while":
            _capture_invariants(op)


def _reshape_broadcast(op: ir.Operation) -> None:
    """Replaces a broadcast that only adds dims of size 1 by a reshape.

    Shardy propagates through reshapes before products, and through broadcasts after products.
    """
    (x,), (y,) = op.operands, op.results
    dims = list(op.attributes["broadcast_dimensions"])
    if dims and dims == sorted(dims) and math.prod(x.type.shape) == math.prod(y.type.shape):
        replace(op, create("stablehlo.reshape", op, [x], {}).results)


def _capture_invariants(loop: ir.Operation) -> None:
    """Replaces unchanged values of a loop by the outer values, so that constraints inside apply to the outer values.

    A value with a requested sharding gets an open constraint, since the loop may use it in another sharding.
    """
    cond, body = (r.blocks[0] for r in loop.regions)
    end = body.operations[-1]
    for i, value in enumerate(loop.operands):
        if end.operands[i] != body.arguments[i]:
            continue
        read: ir.Value | None = None
        for use in [u for block in (cond, body) for u in block.arguments[i].uses]:
            if use.owner != end:
                read = _opened(value, loop) if read is None else read
                use.owner.operands[use.operand_number] = read
        loop.results[i].replace_all_uses_with(value)


def _opened(value: ir.Value, before: ir.Operation) -> ir.Value:
    """Returns a value with a requested sharding in any sharding; other values unchanged."""
    sharding = requested(value)
    if sharding is None:
        return value
    mesh, rank = str(sharding.mesh_or_ref), len(value.type.shape)
    text = f"#sdy.sharding<{mesh}, [{', '.join(['{?}'] * rank)}]>"
    attributes = {OWN["sdy.sharding_constraint"]: ir.Attribute.parse(text, before.context)}
    return create("sdy.sharding_constraint", before, [value], attributes, [value.type]).results[0]


def _slice_at_constants(op: ir.Operation) -> None:
    """Replaces a dynamic_slice with constant start indices by a slice.

    Shardy splits the dims of a slice, but not the dims that a dynamic_slice cuts.
    """
    x, *indices = op.operands
    sizes, found = list(op.attributes["slice_sizes"]), [integers_of(i) for i in indices]
    known = [i for i in found if i is not None]
    if len(known) < len(found):
        return
    whole = zip(known, x.type.shape, sizes, strict=True)
    starts = [int(np.clip(i, 0, n - size)) for i, n, size in whole]
    limits = list(map(operator.add, starts, sizes))
    rows = {"start_indices": starts, "limit_indices": limits, "strides": [1] * len(sizes)}
    attributes = {name: ir.DenseI64ArrayAttr.get(row) for name, row in rows.items()}
    replace(op, create("stablehlo.slice", op, [x], attributes).results)


# --- products ---------------------------------------------------------------------------------------------------------


_Known = dict[ir.Value | ir.Attribute, Sharding]
"""The shardings of the function's arguments, and of the attributes that were read."""


def gather_cheap_operands(
    body: Sequence[ir.Operation], arguments: Sequence[ir.Value], given: Sequence[Sharding], sizes: Mapping[str, int]
) -> None:
    """Replaces the reshards of products' operands that Shardy inserted, where gathering the contracted dims moves less.

    `given` are the shardings of the function's arguments. Its unused reshards stay.
    """
    known: _Known = dict(zip(arguments, given, strict=True))
    moved = functools.cache(functools.partial(moved_elements, sizes=sizes))
    for op in body:
        if op.name == "stablehlo.dot_general":
            _choose(op, known, sizes, moved)


def _choose(op: ir.Operation, known: _Known, sizes: Mapping[str, int], moved_of: Callable[..., float]) -> None:
    sources = [_source(v) for v in op.operands]
    if all(s == v for s, v in zip(sources, op.operands, strict=True)):
        return
    contracted, _ = dot_dims(op)
    found = [_sharding(v, known) for v in (*sources, *op.operands, op.results[0])]
    complete = [s for s in found if s is not None]
    if len(complete) < len(found):
        return
    present, targets, result = complete[:2], complete[2:4], complete[4]
    axes = [a for d in contracted[0] for a in targets[0][d]]
    alike = [present[0][d] for d in contracted[0]] == [present[1][d] for d in contracted[1]]
    if alike or not axes:
        return
    whole = [
        tuple(() if d in dims else a for d, a in enumerate(t)) for t, dims in zip(targets, contracted, strict=True)
    ]

    def moved(ends: Sequence[Sharding]) -> float:
        rows = zip(sources, present, ends, strict=True)
        return sum(moved_of(s, t, tuple(v.type.shape)) for v, s, t in rows)

    n = count(axes, sizes)
    partial = math.prod(local_shape(op.results[0].type.shape, result, sizes))
    # A reduction that the program scatters moves half.
    reduced = (1 if _is_scattered(op, axes, known) else 2) * (n - 1) / n * partial
    if moved(whole) >= moved(targets) + reduced:
        return
    inserted = next(filter(None, map(_inserted, op.operands)))
    for i, (source, end) in enumerate(zip(sources, whole, strict=True)):
        attributes = {OWN["sdy.reshard"]: shardings.written(inserted.attributes[OWN["sdy.reshard"]], end)}
        op.operands[i] = create("sdy.reshard", op, [source], attributes, [source.type]).results[0]


def _inserted(value: ir.Value) -> ir.Operation | None:
    """Returns the reshard that Shardy inserted for a value; None for any other value."""
    op = producer(value, "sdy.reshard")
    return None if op is None or WRITTEN in op.attributes else op


def _source(value: ir.Value) -> ir.Value:
    """Returns the value that Shardy reshards for an op."""
    op = _inserted(value)
    return value if op is None else op.operands[0]


def _sharding(value: ir.Value, known: _Known) -> Sharding | None:
    """Returns the sharding of a value; None for an argument of a loop or a branch. Adds what it reads to `known`."""
    if value in known:
        return known[value]
    if producer(value) is None:
        return None
    attribute = shardings.requested(value)
    if attribute is None:
        return shardings.replicated(len(value.type.shape))
    if attribute not in known:
        known[attribute] = shardings.read(attribute)
    return known[attribute]


def _is_scattered(op: ir.Operation, axes: Sequence[str], known: _Known) -> bool:
    uses = list(op.results[0].uses)
    while len(uses) == 1 and uses[0].owner.name in ("sdy.all_reduce", "sdy.reshard"):
        following = uses[0].owner
        target = _sharding(following.results[0], known)
        if target is not None and set(axes) & set(shardings.axes_of(target)):
            return True
        uses = list(following.results[0].uses)
    return False


# --- slices and loops -------------------------------------------------------------------------------------------------


def without_cut_dims(sharding: Sharding, shape: Sequence[int], sliced: Sequence[int]) -> Sharding:
    """Returns the sharding of a slice, or an update, of a value in a sharding: the dims that are cut are whole."""
    return tuple(axes if n == size else () for axes, n, size in zip(sharding, shape, sliced, strict=True))


_GATHERED = 2**24
"""The most elements of a value that each device holds whole to slice it."""


def exchange_cheap_slices(body: Sequence[ir.Operation], sizes: Mapping[str, int]) -> None:
    """Replaces the reshards of sliced values that Shardy inserted, where another way moves less.

    Shardy moves the split of a cut dim to another dim, and gathers each slice. A gather of the value once before a loop
    moves less. If the value changes in the loop, or the loop reads little, each device sends its part of each slice.
    """
    dynamic, slices = [op for op in body if op.name == "stablehlo.dynamic_slice"], [*filter(_changes, body)]
    for op in dynamic:
        inserted = _inserted(op.operands[0])
        if inserted is not None:
            _choose_slice(op, inserted, sizes)
    while slices:
        source = _source(slices[0].operands[0])
        alike = [op for op in slices if _source(op.operands[0]) == source]
        slices = [op for op in slices if _source(op.operands[0]) != source]
        _exchange_at_constants(source, alike, sizes)


def _changes(op: ir.Operation) -> bool:
    """Returns True for a slice at constants, without steps, of a value that the loop around changes."""
    around = op.name == "stablehlo.slice" and op.parent is not None and op.parent.operation.name == "stablehlo.while"
    return around and set(op.attributes["strides"]) == {1} and not [*_loops_around(_source(op.operands[0]), op)]


def _choose_slice(op: ir.Operation, inserted: ir.Operation, sizes: Mapping[str, int]) -> None:
    (x, *starts), (y,), (source,) = op.operands, op.results, inserted.operands
    shape, sliced = tuple(x.type.shape), tuple(y.type.shape)
    present, target, result = (_lies(v, sizes) for v in (source, x, y))
    whole = without_cut_dims(present, shape, sliced)
    if whole == present or not math.prod(sliced):
        return
    readers = [(u, _inserted(u.owner.results[0]) if u.owner.name == "sdy.reshard" else None) for u in y.uses]
    ends = {result if r is None else _lies(r.results[0], sizes) for _, r in readers}

    def moved_after(sharding: Sharding) -> float:
        return sum(moved_elements(sharding, end, sliced, sizes) for end in ends)

    counters = [find_counter(loop) for loop, _ in _loops_around(source, inserted)]
    # A loop of unknown length reads each slice once.
    once = math.prod(shape) // math.prod(sliced)
    times = math.prod(once if c is None else max(c.length, 1) for c in counters)
    times *= sum(_inserted(u.owner.results[0]) is not None for u in source.uses if u.owner.name == "sdy.reshard")
    resharded = moved_elements(present, target, shape, sizes) / times + moved_after(result)
    gathered = moved_elements(present, whole, shape, sizes) / times + moved_after(whole)
    exchanged = _exchanged_elements(shape, sliced, present, whole, sizes) + moved_after(whole)
    if math.prod(local_shape(shape, whole, sizes)) > _GATHERED:
        gathered = math.inf
    if min(gathered, exchanged) >= resharded:
        return

    template = inserted.attributes[OWN["sdy.reshard"]]
    if gathered <= exchanged:
        attribute = {OWN["sdy.reshard"]: shardings.written(template, whole)}
        source = create("sdy.reshard", inserted, [source], attribute).results[0]
    _replace_slice(op, [source, *starts], whole, template, sizes)
    if not list(x.uses):
        inserted.erase()


def _replace_slice(
    op: ir.Operation, operands: list[ir.Value], whole: Sharding, template: ir.Attribute, sizes: Mapping[str, int]
) -> None:
    """Replaces a slice by a dynamic_slice whose cut dims are whole; `template` is any sharding over the mesh."""
    (y,) = op.results
    result = shardings.written(template, _lies(y, sizes))
    attributes: dict[str, ir.Attribute] = {"slice_sizes": ir.DenseI64ArrayAttr.get(y.type.shape)}
    if op.name == "stablehlo.dynamic_slice":
        attributes = dict(op.attributes.items())
    attributes[SHARDING] = sdy.TensorShardingPerValueAttr.get([shardings.written(template, whole)])
    made = create("stablehlo.dynamic_slice", op, operands, attributes).results[0]
    for use in list(y.uses):
        if use.owner.name == "sdy.reshard" and _inserted(use.owner.results[0]) is not None:
            use.owner.operands[use.operand_number] = made
    if list(y.uses):
        made = create("sdy.reshard", op, [made], {OWN["sdy.reshard"]: result}).results[0]
    replace(op, [made])


def _exchange_at_constants(source: ir.Value, slices: Sequence[ir.Operation], sizes: Mapping[str, int]) -> None:
    """Replaces all slices at constants of a value, if exchanges move less than a reshard that nothing else reads."""
    shape, present = tuple(source.type.shape), _lies(source, sizes)
    moving, resharded, exchanged = list[tuple[ir.Operation, Sharding, ir.Attribute]](), 0.0, 0.0
    for op in slices:
        (x,), (y,) = op.operands, op.results
        # Without a reshard, the operand is split as the result where each device has its own part.
        end = _lies(x, sizes) if x != source else split_slice(op, _lies(y, sizes), sizes, list)
        template = requested(y)
        if template is not None and end != present:
            moving.append((op, without_cut_dims(present, shape, y.type.shape), template))
            resharded = max(resharded, moved_elements(present, end, shape, sizes))
            exchanged += _exchanged_elements(shape, y.type.shape, present, moving[-1][1], sizes)
    inserted = [u.owner for u in source.uses if u.owner.name == "sdy.reshard" and _inserted(u.owner.results[0])]
    others = sum(len(list(r.results[0].uses)) for r in inserted) - sum(op.operands[0] != source for op, *_ in moving)
    if others > 0 or exchanged >= resharded:
        return
    for op, whole, template in moving:
        number, operands = ir.Type.parse("tensor<i32>", op.context), [source]
        for start in op.attributes["start_indices"]:
            value = ir.Attribute.parse(f"dense<{start}> : tensor<i32>", op.context)
            operands.append(create("stablehlo.constant", op, [], {"value": value}, [number]).results[0])
        _replace_slice(op, operands, whole, template, sizes)
    for reshard in inserted:
        reshard.erase()


def _exchanged_elements(
    shape: Sequence[int], sliced: Sequence[int], present: Sharding, whole: Sharding, sizes: Mapping[str, int]
) -> float:
    """Returns the elements that a device receives if each device sends its part of a slice, dim by dim."""
    own, moved = list(local_shape(shape, present, sizes)), 0
    for d in [d for d, axes in enumerate(present) if axes != whole[d]]:
        own[d] = min(own[d], sliced[d])
        moved += math.prod(own) * (count(present[d], sizes) - 1)
    return moved


def _lies(value: ir.Value, sizes: Mapping[str, int]) -> Sharding:
    """Returns the sharding of a value, including carries of loops; replicated for arguments of other regions."""
    owner = value.owner
    if isinstance(owner, ir.Block) and owner.owner.name == "stablehlo.while":
        value = owner.owner.results[value.arg_number]
    attribute, shape = shardings.requested(value), tuple(value.type.shape)
    return shardings.replicated(len(shape)) if attribute is None else shardings.read_nearest(attribute, shape, sizes)[0]


def hoist_reshards(body: Sequence[ir.Operation]) -> None:
    """Moves the reshards of values that a loop does not change before the loop."""
    for op in body:
        if op.name == "sdy.reshard":
            for loop, value in _loops_around(op.operands[0], op):
                op.operands[0] = value
                op.move_before(loop)


def _loops_around(value: ir.Value, op: ir.Operation) -> Iterator[tuple[ir.Operation, ir.Value]]:
    """Yields the loops around a reader of a value that they do not change, the innermost first, and the value outside
    of each."""
    while (loop := op.parent) is not None and (loop := loop.operation).name == "stablehlo.while":
        owner = value.owner
        if isinstance(owner, ir.Block) and owner.owner == loop:
            body = loop.regions[1].blocks[0]
            if body.operations[-1].operands[value.arg_number] != body.arguments[value.arg_number]:
                return
            value = loop.operands[value.arg_number]
        elif not isinstance(owner, ir.Block) and owner.operation.parent == loop:
            return
        yield loop, value
        op = loop
