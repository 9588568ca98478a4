"""Emits the bodies of calls in place, unrolls loops and selects branches.

Where only the devices know which branch they take, it selects from the results of all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import numpy as np

from jaxmesh.dialects.attributes import Attributes
from jaxmesh.dialects.definitions import definition_of, has_trait
from jaxmesh.dialects.imported_op import ImportedOp, group_operands
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Shape, Value
from jaxmesh.errors import UnrolledLoopWarning, UnsupportedError
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.control_flow import CALLS, IMPORTED_OP, Cond, Scan, While, control_flow
from jaxmesh.jaxprs.untyped import DType
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten import batches, loops
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.constant_folding import storage_type
from jaxmesh.passes.flatten.elementwise import select
from jaxmesh.passes.flatten.shapes import element, stack

RULES: Rules[Rule] = Rules()


MANY = 20_000
"""The operations of an unrolled loop above which there is a warning."""

FEW = 4096
"""The iterations among which the end of a loop is looked for before it is unrolled."""


@contextmanager
def _unrolling(b: Builder, eqn: Eqn) -> Generator[None]:
    """Counts the operations that a loop emits, inner loops included."""
    outermost = b.loop_start is None
    if outermost:
        b.loop_start = len(b.program.ops)
    yield
    if outermost and b.loop_start is not None:
        made = len(b.program.ops) - b.loop_start
        b.unrolled += made
        b.loop_start = None
        if made > MANY:
            warnings.warn(
                f"{eqn.primitive.name} ({b.user_line(eqn)}) is unrolled to as many as {made} operations; make it "
                "shorter, or its body smaller.",
                UnrolledLoopWarning,
                stacklevel=2,
            )


def _check_limit(b: Builder, eqn: Eqn, done: int, trips: str) -> None:
    # A loop that is short enough to be unrolled may be.
    if (b.no_loop or b.options.keep_above is None) and max(_made(b), done) > b.options.unroll_limit:
        _refuse(b, eqn, done, trips, _made(b))


def _made(b: Builder) -> int:
    assert b.loop_start is not None
    return b.unrolled + len(b.program.ops) - b.loop_start


def _refuse(b: Builder, eqn: Eqn, done: int, trips: str, made: int) -> None:
    raise UnsupportedError(
        f"{eqn.primitive.name} ({b.user_line(eqn)}) of {trips} iterations is unrolled in the text{b.no_loop}, and "
        f"after {done} of them the program's loops have made {made} operations; unroll_limit is "
        f"{b.options.unroll_limit}. Raise unroll_limit, or make the loop shorter."
    )


def _kept(b: Builder, eqn: Eqn, loop: Scan | While, xs: Sequence[Value]) -> Sequence[Value] | None:
    """Builds a loop that is long, or whose end only the devices know; None if it is short."""
    most = b.options.keep_above
    if most is None:
        return None
    if isinstance(loop, Scan):
        if loops.size_of(loop.body, b.mesh) * loop.length <= most:
            return None
    else:
        inner, given = loops.inside(b, xs, keep_above=None, unroll_limit=most)
        inner.unrolled = b.unrolled
        try:
            _while(inner, eqn, given)
        except UnsupportedError:
            pass
        else:
            return None
    b.reading = xs
    try:
        return loops.keep_scan(b, eqn, loop, xs) if isinstance(loop, Scan) else loops.keep_while(b, eqn, loop, xs)
    except UnsupportedError as error:
        # The error for the unrolled loop names what the user can change, and this reason.
        b.no_loop = f" ({str(error).rstrip('.')})"
        return None


@RULES.add("scan")
def _scan(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    loop = control_flow(eqn)
    assert isinstance(loop, Scan)
    kept = _kept(b, eqn, loop, xs)
    if kept is not None:
        return kept
    consts, carry, rows = loop.split(xs)
    stacks: list[list[Value]] = []
    order = range(loop.length - 1, -1, -1) if loop.reverse else range(loop.length)
    with _unrolling(b, eqn):
        for done, i in enumerate(order):
            inputs = [*consts, *carry, *(batches.by_parts(b, lambda xs, i=i: element(b, xs[0], i), [x]) for x in rows)]
            carry, outs = loop.split_results(b.jaxpr(loop.body, inputs))
            stacks.append(outs)
            _check_limit(b, eqn, done + 1, str(loop.length))
    if loop.reverse:
        stacks.reverse()
    if stacks:
        return [
            *carry,
            *(batches.by_parts(b, lambda xs: stack(b, xs, 0), column) for column in zip(*stacks, strict=True)),
        ]
    empty = [storage_type(v.aval, b.line) for v in eqn.outvars[len(carry) :]]
    return [*carry, *(b.full(shape, 0, dtype) for shape, dtype in empty)]


@RULES.add("while")
def _while(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    """Emits iterations until the condition is known to be false.

    Only the devices may know whether the loop goes on, while a part of the condition will end it (`i < 8`). Then they
    compute all iterations up to that end, and choose the results of the last iteration that ran. Results of later
    iterations are never chosen.
    """
    loop = control_flow(eqn)
    assert isinstance(loop, While)
    kept = _kept(b, eqn, loop, xs)
    if kept is not None:
        return kept
    condition_consts, body_consts, carry = loop.split(xs)
    results, alive, done = carry, None, 0
    with _unrolling(b, eqn):
        while True:
            (each,) = b.jaxpr(loop.cond, [*condition_consts, *carry])
            goes_on = batches.any_goes_on(b, each)
            known = b.known.get(goes_on)
            if known is not None and not known:
                return results
            if known is None:
                _check_end(b, eqn, each, done)
                alive = goes_on if alive is None else b.op("logical_and", [alive, goes_on], (), np.bool_)
            before, start = carry, len(b.program.ops)
            carry = b.jaxpr(loop.body, [*body_consts, *before])
            carry = batches.chosen(b, each, before, carry) if loop.is_batched else carry
            results = carry if alive is None else _select(b, alive, results, carry)
            done += 1
            _check_limit(b, eqn, done, "an unknown number of")
            if known is None and done == 1:
                made, trips = _made(b), b.options.unroll_limit // max(len(b.program.ops) - start, 1)
                # The end may be a comparison that holds from there on, or an equation that holds once.
                for trip in (trips, *range(1, min(trips, FEW))):
                    (goes_on,) = b.jaxpr(loop.cond, [*condition_consts, *_later(b, before, carry, trip)])
                    if goes_on in b.known and not b.known[goes_on].any():
                        break
                else:
                    _refuse(b, eqn, done, f"more than {trips}", made)


def _later(b: Builder, before: Sequence[Value], after: Sequence[Value], trips: int) -> list[Value]:
    """Returns a carry after further iterations, whose counters make the same steps as in one."""

    def later(x: Value, y: Value) -> Value:
        if x not in b.known or y not in b.known or b.dtype(x).kind not in "iu":
            return y
        first, second = (b.known[v].astype(np.int64) for v in (x, y))
        most = np.iinfo(b.dtype(x))
        return b.constant(np.clip(first + trips * (second - first), most.min, most.max).astype(b.dtype(x)))

    return [later(x, y) for x, y in zip(before, after, strict=True)]


def _check_end(b: Builder, eqn: Eqn, condition: Value, done: int) -> None:
    if not _has_known_part(b, condition):
        why = b.no_loop or " (MLIR and Python keep it as a loop, if it moves nothing that it computes)"
        raise UnsupportedError(
            f"while loop ({b.user_line(eqn)}): whether it goes on after {done} iterations depends on values "
            f"that only the devices know, and it is unrolled here{why}. Give it a number of iterations that is "
            "static (jax.lax.fori_loop or scan, or a condition on integers that are), or a static limit: "
            "(i < 8) & condition."
        )


def _has_known_part(b: Builder, condition: Value) -> bool:
    if condition in b.known:
        return True
    makers = [b.maker(condition, name) for name in ("logical_and", "logical_or", "logical_not")]
    return any(_has_known_part(b, x) for made in makers if made is not None for x in made.operands if x is not None)


@RULES.add("cond")
def _cond(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    """Emits the branch that is taken; where only the devices know which, they compute all, and choose the results."""
    choice = control_flow(eqn)
    assert isinstance(choice, Cond)
    index, operands = choice.split(xs)
    known = b.known.get(index)
    if known is not None:
        return b.jaxpr(choice.branches[choice.clamp(known)], operands)
    return _select(b, index, *[b.jaxpr(branch, operands) for branch in choice.branches])


def _select(b: Builder, which: Value, *cases: Sequence[Value]) -> list[Value]:
    """Returns the values of the case whose number or truth value is `which`."""
    return [batches.by_parts(b, lambda xs: select(b, which, xs), values) for values in zip(*cases, strict=True)]


_UNREAD = ("composite", "custom_vmap_call")
"""Calls whose bodies no pass before this one looks into."""


@RULES.add(*(name for name in CALLS if name != IMPORTED_OP), *_UNREAD)
def _call(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    if eqn.params.get("newly_manual_axes"):
        raise missing(eqn, "it splits tensors over mesh axes; write that with mesh_shard")
    call = control_flow(eqn)
    bodies = walk.sub_jaxprs(eqn) if call is None else call.bodies
    if len(bodies) != 1:
        raise missing(eqn, "its body is kept in a form that is not known here")
    return b.jaxpr(bodies[0], xs)


_FEW = 8
"""The largest body that is evaluated for known numbers, in equations."""


@RULES.add(IMPORTED_OP)
def _imported_op(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    op, body = eqn.params["op"], eqn.params["jaxpr"]
    assert isinstance(op, ImportedOp)
    name = _name(b, op)
    if name is None:
        return b.jaxpr(body, xs)
    types = [storage_type(v.aval) for v in eqn.outvars]
    results = tuple([b.program.new(b.tensor_type(shape, dtype)) for shape, dtype in types])
    # No rule looks through it, as its attributes may have any form.
    operands = tuple(group_operands(op.segments, xs))
    b.program.ops.append(Op(name, operands, results, _attributes(op, types[0]), b.line))
    if len(body.eqns) <= _FEW and all(x in b.known for x in xs) and not has_trait(name, Trait.OPAQUE):
        # Operations without readers are removed later.
        for result, number in zip(results, b.jaxpr(body, xs), strict=True):
            b.copy_known(result, number)
    return results


def _name(b: Builder, op: ImportedOp) -> str | None:
    """Returns the name of an imported operation; None if it is decomposed."""
    definition = None if op.name is None else definition_of(f"ttir.{op.name}")
    overwrites = definition is not None and definition.overwritten is not None
    if not b.options.keep_imported_ops or (overwrites and not b.options.in_place):
        return None
    if b.level == "ttnn" and op.ttnn is not None:
        return f"ttnn.{op.ttnn}"
    splat = op.name == "constant" and op.attributes["value"].size == 1
    decomposed = b.level == "ttnn" and (splat or has_trait(f"ttir.{op.name}", Trait.DECOMPOSED_FOR_TTNN))
    return None if op.name is None or decomposed else f"ttir.{op.name}"


def _attributes(op: ImportedOp, kind: tuple[Shape, DType]) -> Attributes:
    """Returns the attributes of an imported operation, the elements of a constant in the shape of its result."""
    shape, dtype = kind
    if op.name == "constant":
        value = op.attributes["value"].astype(dtype, copy=False)
        return op.attributes | {"value": np.broadcast_to(value.reshape(()), shape) if value.size == 1 else value}
    return op.attributes


@RULES.add("platform_index")
def _platform_index(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    """Selects the default of `platform_dependent`, because no platform that it names is Tenstorrent."""
    platforms = eqn.params["platforms"]
    if None not in platforms:
        named = ", ".join(p for group in platforms for p in group)
        raise UnsupportedError(
            f"platform_dependent ({b.user_line(eqn)}) has branches for {named} and no default; the program is "
            "printed for another platform. Give it a default."
        )
    shape, dtype = b.result(eqn)
    return b.full(shape, platforms.index(None), dtype)
