"""Loops that stay loops: `ttcore.while_loop`, whose body and condition are flat programs of their own.

In a TTNN text a body computes on the devices alone: the host tensors that a loop reads are distributed before it, and
its host results are aggregated behind it. A transfer that copies a tensor to all devices, or from the first device,
moves nothing then. A distribute that is the same in every iteration stands before the loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import LOOP, Op, Port, Shape, Value, without_dead
from jaxmesh.dialects.residency import DEVICE, FREE, HOST, Residency, ResidencyMap, has_transfer
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs import compat, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr
from jaxmesh.jaxprs.control_flow import Scan, While, control_flow
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import DType
from jaxmesh.passes.flatten import batches
from jaxmesh.passes.flatten.builder import Builder
from jaxmesh.passes.flatten.constant_folding import storage_type
from jaxmesh.passes.flatten.counted_writes import counted_writes, number_of, numbers_of, with_rows, without
from jaxmesh.passes.flatten.index_arithmetic import INDEX, compare, known, positions, select
from jaxmesh.passes.flatten.slicing_and_gather import dynamic_slice
from jaxmesh.passes.mesh_shard.insert_transfers import copies
from jaxmesh.sharding.shard_attributes import FIRST_DEVICE

Build = Callable[[Builder, list[Value]], Sequence[Value]]
"""Builds a body, of its arguments."""
LONG = 64
"""The length from which a stacked result is filled piece by piece."""
PIECE = 10
"""The most pieces of a stack that one loop fills."""
INSIDE = 16
"""How many times fewer operations a loop has that stays one in the body of another."""


def operations_of(eqn: Eqn, mesh: Mapping[str, int]) -> int:
    """Returns the number of operations of an equation, where TTNN sends from one device to one other."""
    name, params = eqn.primitive.name, eqn.params
    if name not in ("ppermute", "all_to_all", "pbroadcast"):
        return 1
    axes = params["axis_name"]
    members = math.prod(mesh[a] for a in ((axes,) if isinstance(axes, str) else axes))
    pairs = {"ppermute": len(params.get("perm", ())), "all_to_all": members * (members - 1)}.get(name, members - 1)
    return max(1, pairs * math.prod(mesh.values()) // members)


def count_sends(b: Builder, eqn: Eqn) -> None:
    """Counts the operations that the operation of an equation becomes in TTNN, if a loop around it is unrolled."""
    if b.loop_start is not None:
        b.unrolled += operations_of(eqn, b.mesh) - 1


def size_of(jaxpr: Jaxpr, mesh: Mapping[str, int]) -> int:
    """Returns the number of operations that a body runs, scans in it included."""
    total = 0
    for eqn in walk.open_jaxpr(jaxpr).eqns:
        flow = control_flow(eqn)
        inner = 0 if flow is None else sum(size_of(body, mesh) for body in flow.bodies)
        total += max(operations_of(eqn, mesh), inner * (flow.length if isinstance(flow, Scan) else 1))
    return total


def largest_unrolled(jaxpr: Jaxpr, limit: int, mesh: Mapping[str, int]) -> int:
    """Returns the largest size of loops to unroll: the loops of this size and below have at most `limit` operations.

    Loops of one size are treated alike, wherever they stand. If all loops fit, it is `limit`.
    """
    total = 0
    for size, group in itertools.groupby(sorted(_sizes(jaxpr, mesh))):
        total += size * len(list(group))
        if total > limit:
            return min(size - 1, limit)
    return limit


def _sizes(jaxpr: Jaxpr, mesh: Mapping[str, int]) -> Iterator[int]:
    """Yields the unrolled size of each outermost scan, once for each call."""
    for eqn in walk.open_jaxpr(jaxpr).eqns:
        flow = control_flow(eqn)
        if isinstance(flow, Scan):
            yield size_of(flow.body, mesh) * flow.length
        elif flow is not None and not isinstance(flow, While):
            for body in flow.bodies:
                yield from _sizes(body, mesh)


def keep_scan(b: Builder, eqn: Eqn, loop: Scan, xs: Sequence[Value]) -> list[Value]:
    """Builds a loop of a scan: its states are the counter, the carry and the stacked results.

    A state that is written at the number of the iteration alone is a stacked result, too.
    """
    (consts, carry, rows), writes = loop.split(xs), counted_writes(b, loop, xs)
    plain, gone = with_rows(loop, writes), {w.number for w in writes}
    back = [*[loop.reverse] * (len(eqn.outvars) - len(carry)), *(w.backwards for w in writes)]
    made = _Stacking(eqn, plain, back).build(b, [*consts, *without(carry, gone), *rows])
    after, stacks = plain.split_results(made)
    states, own = iter(after), len(back) - len(writes)
    pairs = zip(writes, stacks[own:], strict=True)
    written = {w.number: w.put_back(b, _placed(b, carry[w.number]), x) for w, x in pairs}
    return _gathered(b, eqn, [*(written[i] if i in gone else next(states) for i in range(len(carry))), *stacks[:own]])


@dataclass(frozen=True, slots=True)
class _Stacking:
    """The loops of a scan, whose stacked results are filled from the front or from the `back`.

    An iteration that writes a row writes the whole stack. So a long scan with stacked results is a loop over pieces of
    the stacks, and an inner loop fills each piece, which may be cut again. The rest is a loop behind.
    """

    eqn: Eqn
    loop: Scan
    back: Sequence[bool]

    def build(self, b: Builder, xs: Sequence[Value]) -> list[Value]:
        """Returns the carry behind the loops, and the stacks."""
        loop, parts, done = self.loop, list[list[Value]](), 0
        consts, now, elements = loop.split(xs)
        results = loop.split_results(walk.open_jaxpr(loop.body).outvars)[1]
        rows = [storage_type(v.aval, b.line) for v in results]
        while done < loop.length:
            sizes = _sizes_of(loop.length - done) if rows else (loop.length,)
            start = [b.full((), done, INDEX)] if done else []
            now, made = loop.split_results(self.run(b, sizes, rows, now, [*consts, *elements, *start]))
            done += math.prod(sizes)
            parts.append([b.reshape(x, (math.prod(sizes), *shape)) for x, (shape, _) in zip(made, rows, strict=True)])
        stacks = (x[::-1] if r else x for x, r in zip(zip(*parts, strict=True), self.back, strict=True))
        return [*now, *(b.concat(x, 0) for x in stacks)]

    def run(
        self,
        b: Builder,
        sizes: Sequence[int],
        rows: Sequence[tuple[Shape, DType]],
        now: Sequence[Value],
        fixed: Sequence[Value],
    ) -> list[Value]:
        """Builds a loop of the first size around the loops of the others; a start may stand behind what is fixed."""
        states = [b.full((), 0, INDEX), *now, *(b.full((*sizes, *shape), 0, dtype) for shape, dtype in rows)]

        def build(inner: Builder, given: list[Value]) -> Sequence[Value]:
            counter, (carry, stacks) = given[0], self.loop.split_results(given[1 : len(states)])
            fixed, start = self.split(given[len(states) :])
            number = counter
            if len(sizes) > 1:
                number = inner.binary("multiply", counter, inner.full((), math.prod(sizes[1:]), INDEX))
            number = inner.binary("add", start[0], number) if start else number
            made = (
                self.run(inner, sizes[1:], rows, carry, [*fixed, number])
                if len(sizes) > 1
                else self.iteration(inner, number, carry, fixed)
            )
            after, new = self.loop.split_results(made)
            written = _written(inner, stacks, new, counter, self.back)
            return [inner.binary("add", counter, inner.full((), 1, INDEX)), *after, *written]

        return _keep(b, self.eqn, states, fixed, [build], sizes[0])[1:]

    def split(self, fixed: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value]]:
        """Returns what is fixed, and its start if there is one."""
        count = len(walk.open_jaxpr(self.loop.body).invars) - self.loop.num_carry
        return fixed[:count], fixed[count:]

    def iteration(self, b: Builder, number: Value, carry: Sequence[Value], fixed: Sequence[Value]) -> list[Value]:
        """Builds one iteration of the scan."""
        consts, elements = fixed[: self.loop.num_consts], fixed[self.loop.num_consts :]
        at = _turned(b, self.loop.reverse, number, self.loop.length)
        return b.jaxpr(self.loop.body, [*consts, *carry, *(_element(b, x, at) for x in elements)])


def _sizes_of(length: int) -> tuple[int, ...]:
    """Returns sizes of at most `PIECE`, outer ones first, whose product is nearly a length; a short one alone.

    >>> _sizes_of(63), _sizes_of(8192), _sizes_of(1021)
    ((63,), (8, 8, 8, 8, 2), (9, 8, 7, 2))
    """
    if length < LONG:
        return (length,)
    for product in range(length, 0, -1):
        sizes, rest = list[int](), product
        while size := next((n for n in range(PIECE, 1, -1) if rest % n == 0), 0):
            sizes.append(size)
            rest //= size
        if rest == 1:
            return tuple(sizes)
    raise AssertionError("1 is a product of no sizes")


def _turned(b: Builder, back: bool, number: Value, length: int) -> Value:
    return b.binary("subtract", b.full((), length - 1, INDEX), number) if back else number


def _element(b: Builder, x: Value, at: Value) -> Value:
    """Returns a row of a stack, by a number in range."""
    rest = b.shape(x)[1:]
    return b.reshape(dynamic_slice(b, x, [at, *[b.full((), 0, INDEX)] * len(rest)], (1, *rest)), rest)


def _written(
    b: Builder, stacks: Sequence[Value], rows: Sequence[Value], counter: Value, back: Sequence[bool]
) -> list[Value]:
    """Returns stacks with another row each, whose number the counter is, from the front or from the back."""
    made, masks = list[Value](), dict[bool, Value]()
    for x, row, r in zip(stacks, rows, back, strict=True):
        count, *rest = b.shape(x)
        if r not in masks:
            masks[r] = compare(b, "eq", positions(b, (count,), 0), _turned(b, r, counter, count))
        here = b.reshape(masks[r], (count, *[1] * len(rest)))
        made.append(select(b, here, b.reshape(row, (1, *rest)), x))
    return made


def keep_while(b: Builder, eqn: Eqn, loop: While, xs: Sequence[Value]) -> list[Value]:
    """Builds a loop under a condition, or with a known number of iterations; its states are the carry."""
    of_condition, of_body, carry = loop.split(xs)
    first, second = len(carry), len(carry) + len(of_condition)

    def body(inner: Builder, given: list[Value]) -> Sequence[Value]:
        after = inner.jaxpr(loop.body, [*given[second:], *given[:first]])
        if loop.is_batched:
            after = batches.chosen(
                inner, inner.jaxpr(loop.cond, [*given[first:second], *given[:first]])[0], given[:first], after
            )
        return after

    def condition(inner: Builder, given: list[Value]) -> Sequence[Value]:
        return [batches.any_goes_on(inner, *inner.jaxpr(loop.cond, [*given[first:second], *given[:first]]))]

    trips = _count_trips(b, loop, xs)
    if trips is not None:
        scan = Scan(loop.body, len(of_body), len(carry), trips, reverse=False)
        given = [*of_body, *carry]
        if trips and counted_writes(b, scan, given):
            return keep_scan(b, eqn, scan, given)
    builds = [body] if trips is not None else [body, condition]
    return _gathered(b, eqn, _keep(b, eqn, carry, [*of_condition, *of_body], builds, trips))


def _count_trips(b: Builder, loop: While, xs: Sequence[Value]) -> int | None:
    """Returns the iterations of a loop that counts up from a known number to a known limit; None for any other loop."""
    of_condition, of_body, carry = loop.split(xs)
    cond, body = map(walk.open_jaxpr, loop.bodies)
    if loop.is_batched:
        return None
    test = next((e for e in cond.eqns if e.outvars[0] is cond.outvars[0] and e.primitive.name == "lt"), None)
    if test is None:
        return None
    found = numbers_of(b, Scan(loop.body, len(of_body), len(carry), 2, reverse=False), [*of_body, *carry])
    states = zip(cond.invars[len(of_condition) :], body.invars[len(of_body) :], strict=True)
    seen = {v: found[w] for v, w in states if w in found}
    fixed = ((v, known(b, x)) for v, x in zip(cond.invars, of_condition, strict=False))
    seen |= {v: np.broadcast_to(x.reshape(-1), (2,)) for v, x in fixed if x is not None and x.size == 1}
    counter, limit = (number_of(seen, a, 2) for a in test.invars)
    if counter is None or limit is None or counter.dtype.kind not in "iu" or limit[0] != limit[1]:
        return None
    (start, second), end = map(int, counter), int(limit[0])
    fits = second > start and end <= np.iinfo(counter.dtype).max - (second - start)
    return max(-((start - end) // (second - start)), 0) if fits else None


def inside(b: Builder, xs: Sequence[Value], **options: object) -> tuple[Builder, list[Value]]:
    """Returns a builder of a body, and its arguments; tensors made from nothing are made again."""
    inner, given = b.inside(**options), dict[Value, Value]()
    for x in dict.fromkeys(xs):
        made = b.makers[x] if b.is_created(x) and b.maker(x, "constant") is None else None
        value = inner.program.new(b.program.types[x])
        if made is not None:
            inner.append(Op(made.name, (), (value,), made.attributes, b.line))
            inner.copy_known(value, x, b)
        else:
            inner.outside[value] = x
        given[x] = value
    return inner, [given[x] for x in xs]


def _keep(
    b: Builder, eqn: Eqn, states: Sequence[Value], fixed: Sequence[Value], builds: Sequence[Build], trips: int | None
) -> list[Value]:
    if not b.pairs.keys().isdisjoint((*states, *fixed)):
        raise UnsupportedError(f"{eqn.primitive.name} ({b.user_line(eqn)}) of complex numbers stays no loop.")
    built: list[tuple[Builder, list[Value]]] = []
    most = (b.options.keep_above or 0) // INSIDE
    most = min(largest_unrolled(body, most, b.mesh) for body in walk.sub_jaxprs(eqn))
    for build in builds:
        inner, given = inside(b, fixed, keep_above=most)
        own = [inner.program.new(b.program.types[x]) for x in states]
        results = build(inner, [*own, *given])
        if not inner.pairs.keys().isdisjoint(results):
            raise UnsupportedError(f"{eqn.primitive.name} ({b.user_line(eqn)}) of complex numbers stays no loop.")
        inner.program.results = [Port(v, True) for v in results]
        inner.program = without_dead(inner.program)
        built.append((inner, own))
    read = {v for inner, _ in built for op in inner.program.ops for v in op.used}
    read |= {r.value for inner, _ in built for r in inner.program.results}
    outer = list(dict.fromkeys(x for inner, _ in built for v, x in inner.outside.items() if v in read))
    for inner, own in built:
        at = {x: v for v, x in inner.outside.items()}
        values = [at[x] if x in at else inner.program.new(b.program.types[x]) for x in outer]
        inner.program.arguments = [Port(v, True) for v in (*own, *values)]
    programs = dict(zip(("body", "condition"), (inner.program for inner, _ in built), strict=False))
    types = [(b.shape(x), b.dtype(x)) for x in states]
    operands = [_placed(b, x) for x in (*states, *outer)]
    return list(b.ops(LOOP, operands, types, **programs, trips=trips))


# --- what is on the host ---------------------------------------------------------------------------------------------


def is_host(b: Builder, x: Value) -> bool:
    """Returns True if a value is a full host tensor."""
    if b.level != "ttnn" or b.outer is not None:
        return False
    while (op := b.makers.get(x)) is not None:
        if not has_trait(op.name, Trait.VIEW):
            return op.name == "ttnn.aggregate_tensor"
        x = op.used[0]
    return any(port.value == x and not port.presharded for port in b.program.arguments)


def _placed(b: Builder, x: Value) -> Value:
    """Returns a value on the devices, distributed as the body distributes what it reads of the host."""
    if not is_host(b, x):
        return x
    return distribute(b, x, copies(b.mesh.values()), b.shape(x))


def distribute(b: Builder, x: Value, config: object, shape: Sequence[int]) -> Value:
    """Returns a tensor distributed over the mesh; in a body, what is the same in every iteration before the loop."""
    if b.outer is None:
        kind = (tuple(shape), b.dtype(x))
        make = lambda: b.ops("ttnn.distribute_tensor", [x], [kind], mapper_config=config)[0]  # noqa: E731
        return b.once(x, ("ttnn.distribute_tensor", config), make)
    if tuple(shape) == b.shape(x):
        return x
    source = b.outside.get(x)
    if b.is_created(x):
        source, made = b.outer.program.new(b.program.types[x]), b.makers[x]
        b.outer.append(Op(made.name, (), (source,), made.attributes, b.line))
    if source is None:
        raise UnsupportedError(f"a loop whose body distributes a tensor that it computes ({b.line}) stays no loop.")
    value = b.program.new(b.tensor_type(tuple(shape), b.dtype(x)))
    b.outside[value] = distribute(b.outer, source, config, shape)
    return value


def _gathered(b: Builder, eqn: Eqn, results: Sequence[Value]) -> list[Value]:
    """Returns the results of a loop where the rest of the program reads them."""
    kinds = [(b.shape(v), b.dtype(v)) for v in results]
    return [b.ops("ttnn.aggregate_tensor", [v], [t], composer_config=FIRST_DEVICE)[0] if host else v
            for v, t, host in zip(results, kinds, _on_host(b, eqn), strict=True)]  # fmt: skip


def _on_host(b: Builder, eqn: Eqn) -> list[bool]:
    """Returns for each result of a loop whether the rest of the program reads it on the host.

    A printed loop whose body moves no tensor computes on the devices: what else reads it there was given a transfer.
    """
    if b.level != "ttnn" or b.outer is not None or not any(map(has_transfer, walk.sub_jaxprs(eqn))):
        return [False] * len(eqn.outvars)
    known = b.residencies
    if known is not None and known.values.keys() >= set(eqn.outvars):
        return [known.of(v) is HOST for v in eqn.outvars]
    pairs = zip(eqn.invars, b.reading, strict=True)
    atoms = {a: x for a, x in pairs if not isinstance(a, compat.Literal)}
    inputs = [_residency(b, a, x) for a, x in atoms.items()]
    return [r is HOST for r in ResidencyMap(walk.alone(eqn, _EMPTY), inputs).results]


def _residency(b: Builder, atom: Atom, x: Value) -> Residency:
    if b.is_created(x) and not compat.varying_axes(atom.aval):
        return FREE if np.prod(b.shape(x)) <= 1 else HOST
    return HOST if is_host(b, x) else DEVICE


_EMPTY: Jaxpr = typed.make_jaxpr(lambda: ())()
