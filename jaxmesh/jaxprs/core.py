"""The only file that touches `jax.extend.core`, reaches into JAX internals, or knows a JAX version.

Traces, rewrites and evaluates jaxprs of JAX 0.10.2 to 0.12; `ClosedJaxpr` and `Jaxpr` are one class from 0.12 on.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import mesh as mesh_lib
from jax.core import ShapedArray
from jax.extend import core as jex, linear_util as lu, source_info_util
from jax.interpreters import ad, mlir
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jaxmesh.errors import MissingRuleError, UnloweredError, UnsupportedError
from jaxmesh.jaxprs.backend import backend_started as backend_started

Primitive = jex.Primitive
Var = jex.Var
Literal = jex.Literal
DropVar = jex.DropVar
Atom = Any
Aval = Any
Eqn = Any
Jaxpr = Any
"""A jaxpr, open or closed."""
Axes = frozenset[str]
_ROW: Any = (tuple, list)
_bare: set[Any] = set()  # Classes of parameters seen to be neither jaxprs nor rows.
_fresh = jex.gensym()
shard_map: Any = jax.shard_map  # Taken once, so that a program may put jaxmesh.shard_map in its place.


# --- types -----------------------------------------------------------------------------------------------------------


def varying_axes(aval: Aval) -> Axes:
    """The mesh axes over which a value may differ between devices; empty for a full value."""
    kind = getattr(aval, "manual_axis_type", None)
    return frozenset() if kind is None else frozenset(kind.varying)


def unreduced_axes(aval: Aval) -> Axes:
    """The mesh axes over which a value still waits to be summed, or has been declared to be."""
    kind = getattr(aval, "manual_axis_type", None)
    return frozenset() if kind is None else frozenset({*kind.unreduced, *kind.reduced})


def is_array_type(aval: Aval) -> bool:
    """Whether values of the type are arrays: no references, no tokens."""
    return isinstance(aval, ShapedArray)


def retype(aval: Aval, shape: Sequence[int], varying: Iterable[str]) -> Aval:
    """`aval` with another shape, varying over exactly the given axes."""
    kind = aval.manual_axis_type.update(varying=frozenset(varying))
    sharding = aval.sharding
    if sharding.mesh.empty:
        # A constant made outside the program does not know its mesh yet.
        sharding = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec())
    sharding = sharding.update(spec=PartitionSpec(*[None] * len(shape)))
    return aval.update(shape=tuple(shape), sharding=sharding, manual_axis_type=kind)


def typed_struct(aval: Aval, varying: Iterable[str]) -> Any:
    """An argument of `jax.make_jaxpr` like `aval`, typed in the mesh of here and now."""
    mesh = jax.sharding.get_abstract_mesh()
    kind = jax.typeof(np.zeros(())).manual_axis_type.update(varying=frozenset(varying))
    return jax.ShapeDtypeStruct(
        aval.shape,
        aval.dtype,
        weak_type=bool(getattr(aval, "weak_type", False)),
        sharding=NamedSharding(mesh, PartitionSpec(*[None] * len(aval.shape))),
        manual_axis_type=kind,
    )


def describe(aval: Aval) -> str:
    """A type as messages show it, e.g. `float32[8,4]{V:x}`."""
    return aval.str_short() if hasattr(aval, "str_short") else str(aval)


_lax: Any = jax.lax


def vary(x: Any, axes: Iterable[str]) -> Any:
    """The same value, typed as varying over the axes too."""
    return _lax.pcast(x, tuple(axes), to="varying")


# --- meshes ----------------------------------------------------------------------------------------------------------


def program_mesh(op: str) -> dict[str, int]:
    """Axis names and sizes of the mesh whose program is being traced.

    Raises:
      UnloweredError: no program is being traced.
      UnsupportedError: only some axes of the context mesh are manual.
    """
    mesh = jax.sharding.get_abstract_mesh()
    manual = set(mesh.manual_axes)
    if mesh.empty or not manual:
        raise UnloweredError(unlowered_message(op))
    if manual != set(mesh.axis_names):
        raise UnsupportedError(
            f"{op} needs all axes of the mesh {tuple(mesh.axis_names)} to be manual, but only {tuple(sorted(manual))} "
            "are; TTIR knows no partly manual regions. Map over all axes."
        )
    return dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))


def unlowered_message(op: str) -> str:
    """What to do about an operation that runs outside a program."""
    return (
        f"{op} has no execution rule: it is meant for a program that is traced over a mesh and lowered. "
        "Call it inside a function given to jaxmesh.jit(f, mesh=mesh), which traces, lowers and runs it."
    )


def manual_mesh(mesh: AbstractMesh) -> AbstractMesh:
    """The mesh as a program's body sees it: every axis manual."""
    return mesh.update(axis_types=(AxisType.Manual,) * len(mesh.axis_names))


def context_devices() -> tuple[Any, ...] | None:
    """The devices of the mesh of `jax.set_mesh`, if one is set; also inside a trace."""
    mesh = mesh_lib.get_concrete_mesh()
    return None if mesh.empty else tuple(mesh.devices.flat)


# --- primitives ------------------------------------------------------------------------------------------------------


def unlowered_primitive(name: str) -> Any:
    """A primitive that can be traced and transformed, but neither evaluated nor compiled."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnloweredError(unlowered_message(name))

    prim = Primitive(name)
    prim.def_impl(refuse)
    mlir.register_lowering(prim, refuse)
    return prim


def define_linear(prim: Primitive, transpose: Callable[..., Any]) -> None:
    """JVP and transpose of a linear, unary primitive; `transpose(ct, operand, **params)` gives the cotangent."""
    ad.deflinear2(prim, transpose)


def linear_operand_aval(operand: Any) -> Aval:
    """The type of an operand inside a transpose rule, whether it is known there or not."""
    return operand.aval if ad.is_undefined_primal(operand) else jax.typeof(operand)


# --- structure -------------------------------------------------------------------------------------------------------


def open_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr without its constants."""
    return jaxpr.jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) else jaxpr


def close(jaxpr: Jaxpr, consts: Sequence[Any]) -> Jaxpr:
    """The jaxpr with values for its constants."""
    return jex.ClosedJaxpr(jaxpr, list(consts))


def is_jaxpr(value: object) -> bool:
    """True of both classes, open and closed."""
    return isinstance(value, (jex.Jaxpr, jex.ClosedJaxpr))


def rebuild(
    jaxpr: Jaxpr, constvars: Sequence[Var], invars: Sequence[Var], eqns: Sequence[Eqn], outvars: Sequence[Atom]
) -> Jaxpr:
    """An open jaxpr with other contents; names in its debug info are kept where the counts agree."""
    body = open_jaxpr(jaxpr)
    info = body.debug_info
    if len(body.invars) != len(invars) or len(body.outvars) != len(outvars):
        info = info.with_unknown_names()
    return body.replace(
        constvars=list(constvars), invars=list(invars), eqns=list(eqns), outvars=list(outvars), debug_info=info
    )


def with_eqns(jaxpr: Jaxpr, eqns: Sequence[Eqn], outvars: Sequence[Atom]) -> Jaxpr:
    """The same jaxpr, open or closed as it was, with other equations."""
    body = open_jaxpr(jaxpr)
    return close_like(jaxpr, rebuild(body, body.constvars, body.invars, eqns, outvars))


def close_like(jaxpr: Jaxpr, body: Jaxpr) -> Jaxpr:
    """An open jaxpr with the constants of another, where that is closed."""
    return close(body, jaxpr.consts) if isinstance(jaxpr, jex.ClosedJaxpr) else body


def keeps_consts(jaxpr: Jaxpr) -> bool:
    """Whether a jaxpr is of the closed form."""
    return isinstance(jaxpr, jex.ClosedJaxpr)


def form_like(jaxpr: Jaxpr, typed: Jaxpr) -> Jaxpr:
    """A closed jaxpr in the form, open or closed, of the one it stands for.

    Raises:
      UnsupportedError: the form is the open one, which has no place for constants, and there are some.
    """
    if keeps_consts(jaxpr):
        return typed
    if len(typed.consts):
        raise UnsupportedError(f"a body without a place for constants was given {len(typed.consts)} when traced again.")
    return open_jaxpr(typed)


def substitute(atoms: Sequence[Atom], swap: Mapping[Var, Atom]) -> list[Atom]:
    """The atoms, with the variables in `swap` replaced."""
    return [swap.get(a, a) if isinstance(a, Var) else a for a in atoms]


def fresh_var(aval: Aval) -> Var:
    """A variable that no jaxpr holds yet."""
    return _fresh(aval)


def new_eqn(prim: Any, invars: Sequence[Atom], params: Mapping[str, Any], like: Eqn) -> Eqn:
    """A single-result equation, typed by the primitive's own rule, at the source location and context of `like`."""
    with like.ctx.manager:
        aval, effects = prim.abstract_eval(*[v.aval for v in invars], **params)
    return jex.new_jaxpr_eqn(list(invars), [fresh_var(aval)], prim, dict(params), effects, like.source_info, like.ctx)


def context_on(eqn: Eqn, mesh: AbstractMesh) -> Any:
    """The tracing context of an equation, with another mesh."""
    with eqn.ctx.manager, jax.sharding.use_abstract_mesh(mesh):
        return jex.new_jaxpr_eqn([], [], eqn.primitive, {}, jex.no_effects).ctx


def mesh_of(eqn: Eqn) -> AbstractMesh:
    """The mesh in whose program an equation was traced."""
    with eqn.ctx.manager:
        return jax.sharding.get_abstract_mesh()


def copy_of(eqn: Eqn) -> Eqn:
    """An equation that only copies what the given one reads; for those that say something of the mesh alone."""
    return eqn.replace(primitive=jex.primitives.copy_p, params={})


def reshape_eqn(operand: Atom, shape: Sequence[int], like: Eqn) -> Eqn:
    """A `reshape` equation; typed here, because JAX's own rule looks at a tracing context that is gone by now."""
    out = fresh_var(retype(operand.aval, shape, varying_axes(operand.aval)))
    params = {"new_sizes": tuple(shape), "dimensions": None, "sharding": None}
    prim = jex.primitives.reshape_p
    return jex.new_jaxpr_eqn([operand], [out], prim, params, jex.no_effects, like.source_info, like.ctx)


def sub_jaxprs(eqn: Eqn) -> list[Jaxpr]:
    """Every jaxpr among an equation's parameters, also inside tuples (`cond` keeps its branches in one)."""
    return held(eqn.params.values())


def held(values: Iterable[Any]) -> list[Jaxpr]:
    """Every jaxpr among values, also inside tuples and lists."""
    found: list[Jaxpr] = []
    for value in values:
        if type(value) in _bare:
            continue
        if is_jaxpr(value):
            found.append(value)
        elif isinstance(value, _ROW):
            found += held(value)
        else:
            _bare.add(type(value))
    return found


def all_eqns(jaxpr: Jaxpr) -> Iterator[Eqn]:
    """Every equation at every depth, each shared sub-jaxpr once."""
    seen: set[int] = set()
    stack = [jaxpr]
    while stack:
        current = stack.pop()
        if id(current) not in seen:
            seen.add(id(current))
            for eqn in current.eqns:
                yield eqn
                stack.extend(sub_jaxprs(eqn))


def wrapped_like(fun: Callable[..., Any], like: Any) -> Any:
    """`fun` in the form in which custom rules are kept in parameters, with the debug info of the one it replaces."""
    return lu.wrap_init(fun, debug_info=like.debug_info)


def is_zero(x: object) -> bool:
    """A cotangent that is known to be zero and was never made."""
    return type(x) is ad.Zero


def has_order(eqn: Eqn) -> bool:
    """Whether the place of an equation among others matters: it does more than speak of a mesh axis."""
    return bool(eqn.effects) and any(type(e).__name__ != "NamedAxisEffect" for e in eqn.effects)


# --- calls and loops -------------------------------------------------------------------------------------------------

CALLS: Mapping[str, str] = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr", "checkpoint": "jaxpr", "remat": "jaxpr", "shard_map": "jaxpr", "ttir_op": "jaxpr",
}  # fmt: skip
"""Primitives that call one jaxpr once, operands in order, and the parameter that holds it."""

INLINE = frozenset({"jit", "pjit", "closed_call", "core_call", "call", "eval_jaxpr", "ttir_op"})
"""Calls that mean nothing but their body."""


def scan_arity(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many constants and carries a `scan` equation has."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(list(consts)), len(list(carry))


# --- evaluation ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def source_of(eqn: Eqn) -> Generator[None]:
    """Runs the body at the source location and in the tracing context of an equation, on the mesh of here and now."""
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    location = source_info_util.user_context(eqn.source_info.traceback, name_stack=stack)
    mesh = jax.sharding.get_abstract_mesh()
    with location, eqn.ctx.manager, jax.sharding.use_abstract_mesh(mesh):
        yield


def bind(eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    """Binds an equation's primitive to operands; always a list of results."""
    out = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def read(env: Mapping[Var, Any], atom: Atom) -> Any:
    """The value of an operand."""
    return untyped(atom.val) if isinstance(atom, Literal) else env[atom]


def untyped(value: Any) -> Any:
    """A constant without the type it remembers: JAX's typed NumPy arrays keep the mesh they were first seen under."""
    array: Any = value
    return array.view() if isinstance(value, np.ndarray) and type(array) is not np.ndarray else array


def eval_eqns(eqns: Iterable[Eqn], env: dict[Var, Any]) -> None:
    """Evaluates equations in order, reading and writing `env`."""
    for eqn in eqns:
        with source_of(eqn):
            results = bind(eqn, [read(env, a) for a in eqn.invars])
        env.update(zip(eqn.outvars, results, strict=True))


def eval_jaxpr(jaxpr: Jaxpr, *args: Any) -> list[Any]:
    """Evaluates a closed jaxpr."""
    body = open_jaxpr(jaxpr)
    env: dict[Var, Any] = dict(zip(body.constvars, map(untyped, jaxpr.consts), strict=True))
    env.update(zip(body.invars, args, strict=True))
    eval_eqns(body.eqns, env)
    return [read(env, a) for a in body.outvars]


# A user's line is what a message or a program points to, not the line of this package that bound the primitive.
# The programs of the demo, in `cli/`, are user code.
for _room in sorted(pathlib.Path(__file__).parents[1].iterdir()):
    if _room.name not in ("cli", "__pycache__"):
        source_info_util.register_exclusion(str(_room))


def text(jaxpr: Jaxpr) -> str:
    """The jaxpr as text, without colours wherever it is shown."""
    return jaxpr.pretty_print(use_color=False)


def source_line(eqn: Eqn) -> str:
    """`file:line (function)` of the user's code that made an equation."""
    return source_info_util.summarize(eqn.source_info)


def missing_rule(eqn: Eqn, what: str, file: str) -> MissingRuleError:
    """The error for an equation that a pass cannot go through; `file` is where its rule belongs."""
    name, line = eqn.primitive.name, source_line(eqn)
    return MissingRuleError(f"no rule for primitive {name!r} ({line}): {what}. Add one in {file}.")
