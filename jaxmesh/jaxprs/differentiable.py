"""A call of a program that runs in another form than it is written in, with the derivatives of what is written.

A partitioned program has lost custom rules, `stop_gradient`, and linear forms of some operations. So its tangents,
transposes and batches are those of the jaxpr that it was made of, built into programs in turn, when they are run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxmesh.jaxprs import compat, evaluate
from jaxmesh.jaxprs.caches import lru_cached
from jaxmesh.jaxprs.compat import Jaxpr, Primitive
from jaxmesh.jaxprs.stablehlo import struct

Shardings = tuple[Any, ...]
AnyMesh = Mesh | AbstractMesh
Run = Callable[..., Sequence[Any]]
Build = Callable[[Jaxpr, Shardings, Shardings], Run]
"""Builds the form of a program that runs, given the shardings at its ends."""
_jax: Any = jax
_ad: Any = ad

call_p: Any = Primitive("partitioned_call")
call_p.multiple_results = True


class Program:
    """A program: its closed jaxpr, the shardings at its ends, and how the form that runs is built."""

    def __init__(
        self, plain: Jaxpr, ins: Shardings, outs: Shardings, devices: Jaxpr, build: Build, run: Run | None = None
    ) -> None:
        self.plain, self.ins, self.outs, self.devices = plain, ins, outs, devices
        self.out_avals = [_asked(a, s) for a, s in zip(plain.out_avals, outs, strict=True)]
        self._build, self._run = build, run
        self._body: Jaxpr | None = None
        self._error: Exception | None = None
        self._derived: dict[Hashable, Program] = {}

    def prepare(self) -> None:
        """Builds the form that runs, before JAX lowers the call: a lowering cannot hold another one.

        A tangent that is only transposed need not have one; its error is raised if it is run.
        """
        if self._body is not None or self._error is not None:
            return
        try:
            run = self._run or self._build(self.plain, self.ins, self.outs)

            def flat(*args: Any) -> tuple[Any, ...]:
                return tuple(run(*args))

            self._body = jax.make_jaxpr(flat)(*map(struct, self.plain.in_avals))
        except Exception as error:
            if self._run is not None:
                raise
            self._error = error

    def run(self, *args: Any) -> list[Any]:
        """Runs the program."""
        self.prepare()
        if self._body is None:
            assert self._error is not None
            raise self._error
        return evaluate.eval_jaxpr(self._body, *args)

    def evaluate(self, *args: Any) -> list[Any]:
        """Evaluates what is written."""
        return evaluate.eval_jaxpr(self.plain, *args)

    def real_results(self) -> list[int]:
        """Returns the numbers of the results that have tangents."""
        return [i for i, a in enumerate(self.plain.out_avals) if jax.dtypes.issubdtype(a.dtype, np.inexact)]

    def _derive(self, key: Hashable, fun: Callable[..., Any], avals: Any, ins: Any, outs: Any) -> Program:
        if key not in self._derived:
            plain = jax.make_jaxpr(fun)(*avals)
            self._derived[key] = Program(plain, tuple(ins), tuple(outs), self.devices, self._build)
        return self._derived[key]

    def tangent(self, moving: tuple[bool, ...]) -> Program:
        """Returns the program from the arguments and the tangents of some to the tangents of the real results."""
        at, count, real = [i for i, m in enumerate(moving) if m], len(moving), self.real_results()

        def fun(*given: Any) -> list[Any]:
            args = given[:count]

            def of_moving(*xs: Any) -> list[Any]:
                full = list(args)
                for i, x in zip(at, xs, strict=True):
                    full[i] = x
                outs = self.evaluate(*full)
                return [outs[i] for i in real]

            return list(jax.jvp(of_moving, tuple(args[i] for i in at), tuple(given[count:]))[1])

        avals = [struct(a) for a in (*self.plain.in_avals, *[self.plain.in_avals[i] for i in at])]
        ins = [*self.ins, *[self.ins[i] for i in at]]
        return self._derive(("tangent", moving), fun, avals, ins, [self.outs[i] for i in real])

    def transpose(self, linear: tuple[bool, ...]) -> Program:
        """Returns the program from the other arguments and the cotangents of results to those of linear arguments."""
        at = [i for i, m in enumerate(linear) if m]
        others = [i for i, m in enumerate(linear) if not m]

        def fun(*given: Any) -> list[Any]:
            known = given[: len(others)]
            rows = zip(given[len(others) :], self.plain.out_avals, self.out_avals, strict=True)
            cotangents = [x if a == b else _jax.sharding.reshard(x, a.sharding) for x, a, b in rows]

            def of_linear(*xs: Any) -> list[Any]:
                full: list[Any] = [None] * len(linear)
                for i, x in (*zip(others, known, strict=True), *zip(at, xs, strict=True)):
                    full[i] = x
                return self.evaluate(*full)

            kinds = [struct(self.plain.in_avals[i]) for i in at]
            return list(_jax.linear_transpose(of_linear, *kinds)(cotangents))

        avals = [struct(a) for a in (*[self.plain.in_avals[i] for i in others], *self.out_avals)]
        ins = [*[self.ins[i] for i in others], *self.outs]
        return self._derive(("transposed", linear), fun, avals, ins, [self.ins[i] for i in at])

    def batch(self, dims: tuple[int | None, ...], size: int) -> Program:
        """Returns the program over a further dim of some arguments, which is the first of all results."""

        def wider(aval: Any, dim: int | None) -> Any:
            shape = aval.shape if dim is None else (*aval.shape[:dim], size, *aval.shape[dim:])
            return jax.ShapeDtypeStruct(shape, aval.dtype)

        avals = [wider(a, d) for a, d in zip(self.plain.in_avals, dims, strict=True)]
        ins = [_insert(s, d) for s, d in zip(self.ins, dims, strict=True)]
        fun = jax.vmap(self.evaluate, in_axes=dims, out_axes=0, axis_size=size)
        return self._derive(("batched", dims, size), fun, avals, ins, [_insert(s, 0) for s in self.outs])


def _asked(aval: Any, sharding: Any) -> Any:
    """Returns the type of a result: on Explicit axes it has the sharding that is asked for."""
    typed = struct(aval).sharding
    if typed is None or sharding is None:
        return aval
    return aval.update(sharding=NamedSharding(typed.mesh, _full(sharding.spec, aval.ndim)))


def _full(spec: PartitionSpec, ndim: int) -> PartitionSpec:
    return PartitionSpec(*spec, *[None] * (ndim - len(spec)))


def _insert(sharding: Any, dim: int | None) -> Any:
    """Returns a sharding with a further dim that is whole."""
    if sharding is None or dim is None:
        return sharding
    rows = [*sharding.spec, *[None] * dim]
    return NamedSharding(sharding.mesh, PartitionSpec(*rows[:dim], None, *rows[dim:]))


def call(program: Program, args: Sequence[Any]) -> list[Any]:
    """Calls a program; the call has the derivatives of the program's jaxpr."""
    program.prepare()
    return call_p.bind(*args, program=program, devices=program.devices)


@lru_cached(64)
def on_devices_of(mesh: AnyMesh) -> Jaxpr:
    """Returns a jaxpr by which JAX sees, before it lowers a call, over which devices the call runs."""
    auto = mesh.update(axis_types=None) if isinstance(mesh, AbstractMesh) else Mesh(mesh.devices, mesh.axis_names)
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):

        def same(x: Any) -> Any:
            return x

        mapped = compat.shard_map(same, mesh=auto, in_specs=PartitionSpec(), out_specs=PartitionSpec())
        return jax.make_jaxpr(mapped)(np.float32(0))


# --- the primitive ---------------------------------------------------------------------------------------------------


def _abstract_eval(*_: Any, program: Program, devices: Jaxpr) -> list[Any]:
    return list(program.out_avals)


def _impl(*args: Any, program: Program, devices: Jaxpr) -> list[Any]:
    jitted: Any = jax.jit(program.run)
    return jitted(*args)


def _lower(*args: Any, program: Program, devices: Jaxpr) -> list[Any]:
    return program.run(*args)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, program: Program, devices: Jaxpr) -> Any:
    outs = call(program, primals)
    moving = tuple(type(t) is not _ad.Zero for t in tangents)
    derivative = program.tangent(moving)
    made = call(derivative, [*primals, *[t for t, m in zip(tangents, moving, strict=True) if m]])
    found = dict(zip(program.real_results(), made, strict=True))
    return outs, [found[i] if i in found else _ad.Zero(_jax.typeof(y).to_tangent_aval()) for i, y in enumerate(outs)]


def _transpose(cotangents: Sequence[Any], *args: Any, program: Program, devices: Jaxpr) -> list[Any]:
    linear = tuple(_ad.is_undefined_primal(x) for x in args)
    known = [x for x, m in zip(args, linear, strict=True) if not m]
    made = iter(call(program.transpose(linear), [*known, *map(_ad.instantiate_zeros, cotangents)]))
    return [next(made) if m else None for m in linear]


def _batch(args: Sequence[Any], dims: Sequence[Any], *, program: Program, devices: Jaxpr) -> Any:
    at = tuple(None if d is None else int(d) for d in dims)
    size = next(x.shape[d] for x, d in zip(args, at, strict=True) if d is not None)
    outs = call(program.batch(at, size), args)
    return outs, [0] * len(outs)


call_p.def_abstract_eval(_abstract_eval)
call_p.def_impl(_impl)
mlir.register_lowering(call_p, mlir.lower_fun(_lower, multiple_results=True))
_ad.primitive_jvps[call_p] = _jvp
_ad.primitive_transposes[call_p] = _transpose
batching.primitive_batchers[call_p] = _batch
