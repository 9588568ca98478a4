"""Random plain programs with random shardings at their ends and in between, against the same programs unsharded."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from tests.generators.outcome import Outcome

MESHES = {(1, 2): ("y", "x"), (2, 4): ("y", "x"), (8,): ("x",), (2, 2, 2): ("z", "y", "x")}
SIZES = (4, 8, 16)
Op = Callable[[np.random.Generator, Sequence[Any]], tuple[str, Callable[..., Any], tuple[int, ...]] | None]


@dataclass(frozen=True)
class Step:
    """One operation: its name, its function of earlier values, which, and the function on values without shardings."""

    name: str
    fun: Callable[..., Any]
    operands: tuple[int, ...]
    plain: Callable[..., Any] | None = None

    def function(self, sharded: bool) -> Callable[..., Any]:
        """Returns its function, or the one on values without shardings."""
        return self.fun if sharded or self.plain is None else self.plain


@dataclass(frozen=True)
class ShardedProgram:
    """A program of full arrays: its arguments, steps, results, and shardings."""

    mesh: Mesh
    shapes: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    in_specs: tuple[P | None, ...]
    out_specs: tuple[P | None, ...]

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        return self._run(args, sharded=True)

    def unsharded(self, *args: Any) -> tuple[Any, ...]:
        """The same without constraints."""
        return self._run(args, sharded=False)

    def _run(self, args: Sequence[Any], sharded: bool) -> tuple[Any, ...]:
        values = list(args)
        for step in self.steps:
            values.append(step.function(sharded)(*[values[i] for i in step.operands]))
        return tuple(values[i] for i in self.results)

    def about(self) -> Iterator[str]:
        """Describes the program, line by line."""
        yield f"mesh {dict(self.mesh.shape)}, arguments {self.shapes} as {self.in_specs}"
        yield from (f"  v{len(self.shapes) + i} = {s.name}{s.operands}" for i, s in enumerate(self.steps))
        yield f"  results {self.results} as {self.out_specs}"

    def __str__(self) -> str:
        return "\n".join(self.about())


def specs_of(shape: Sequence[int], mesh: Mesh) -> list[P]:
    """Returns every sharding by whole axes that divides a shape, two axes on a dim in both orders."""
    axes = list(mesh.axis_names)
    rows = [(), *((a,) for a in axes), *itertools.permutations(axes, 2)]
    found: list[P] = []
    for choice in itertools.product(rows, repeat=len(shape)):
        used = [a for row in choice for a in row]
        sizes = [int(np.prod([mesh.shape[a] for a in row])) for row in choice]
        if len(used) == len(set(used)) and all(n % k == 0 for n, k in zip(shape, sizes, strict=True)):
            found.append(P(*[row or None for row in choice]))
    return found


# --- operations ------------------------------------------------------------------------------------------------------

Drawn = tuple[str, Callable[..., Any]]


def _one(rng: np.random.Generator, x: Any) -> Drawn:
    """Draws an operation of one value."""
    shape, rank = x.shape, len(x.shape)
    dim = int(rng.integers(rank))
    size = shape[dim]
    order = tuple(map(int, rng.permutation(rank)))
    shift, start = int(rng.integers(1, size)), int(rng.integers(size // 2))
    index = np.asarray(rng.integers(0, size, 4), np.int32)
    options: list[Drawn] = [
        ("tanh", jnp.tanh),
        ("relu", jax.nn.relu),
        ("scale", lambda x: x * 0.5 + 1),
        (f"sum{dim}", lambda x: x.sum(dim, keepdims=True)),
        (f"max{dim}", lambda x: x.max(dim, keepdims=True)),
        (f"mean{dim}", lambda x: x - x.mean(dim, keepdims=True)),
        (f"softmax{dim}", lambda x: jax.nn.softmax(x, dim)),
        (f"logsumexp{dim}", lambda x: jax.nn.logsumexp(x, dim, keepdims=True)),
        (f"argmax{dim}", lambda x: jnp.expand_dims(jnp.argmax(x, dim), dim).astype(np.float32)),
        (f"transpose{order}", lambda x: jnp.transpose(x, order)),
        ("ravel", lambda x: x.reshape(-1, x.shape[-1])),
        ("fold", lambda x: x.reshape(2, x.shape[0] // 2, *x.shape[1:]) if rank < 3 else x.reshape(-1)),
        (f"roll{dim}", lambda x: jnp.roll(x, shift, dim)),
        (f"flip{dim}", lambda x: jnp.flip(x, dim)),
        (f"slice{dim}", lambda x: lax.slice_in_dim(x, start, start + size // 2, axis=dim)),
        (f"stride{dim}", lambda x: lax.slice_in_dim(x, 0, size, 2, dim)),
        (f"pad{dim}", lambda x: jnp.pad(x, [(1, 3) if d == dim else (0, 0) for d in range(rank)])),
        (f"concat{dim}", lambda x: jnp.concatenate([x, x * 2], dim)),
        (f"cumsum{dim}", lambda x: jnp.cumsum(x, dim)),
        (f"sort{dim}", lambda x: jnp.sort(x, dim)),
        (f"gather{dim}", lambda x: jnp.take(x, index, dim)),
        (f"scatter{dim}", lambda x: jnp.moveaxis(jnp.moveaxis(x, dim, 0).at[index].add(1.0), 0, dim)),
        (f"update{dim}", lambda x: lax.dynamic_update_slice_in_dim(x, lax.slice_in_dim(x, 0, 2, axis=dim), start, dim)),
        (f"dynamic{dim}", lambda x: lax.dynamic_slice_in_dim(x, jnp.int32(start), size // 2, dim)),
        ("iota", lambda x: x + jnp.arange(x.shape[-1], dtype=x.dtype)),
        ("scan", lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=2)[0]),
        ("fori", lambda x: lax.fori_loop(0, 2, lambda i, c: c * 0.5 + i, x)),
        ("checkpoint", jax.checkpoint(lambda x: jnp.sin(x) * x)),
        ("repeat", lambda x: jnp.repeat(x, 2, dim)),
        ("onehot", lambda x: jax.nn.one_hot(jnp.argmax(x, -1), x.shape[-1])),
        ("window", lambda x: lax.reduce_window(x, -np.inf, lax.max, (1,) * (rank - 1) + (2,), (1,) * rank, "SAME")),
    ]
    return options[int(rng.integers(len(options)))]


def _two(rng: np.random.Generator, x: Any, y: Any) -> Drawn | None:
    """Draws an operation of two values, if their shapes have one."""
    options: list[Drawn] = []
    if x.shape == y.shape:
        options += [("add", jnp.add), ("mul", jnp.multiply), ("where", lambda x, y: jnp.where(x > y, x, y))]
    if len(x.shape) >= 1 and len(y.shape) == 2 and x.shape[-1] == y.shape[0]:
        options += [("matmul", lambda x, y: x @ y / y.shape[0])] * 3
    if len(x.shape) == len(y.shape) == 2:
        if x.shape[0] == y.shape[0]:
            options += [("matmul_tn", lambda x, y: x.T @ y / x.shape[0])]
        if x.shape[1] == y.shape[1]:
            options += [("matmul_nt", lambda x, y: x @ y.T / x.shape[1])]
    if len(x.shape) == len(y.shape) == 3 and x.shape[0] == y.shape[0] and x.shape[2] == y.shape[1]:
        options += [("batched", lambda x, y: jnp.einsum("bij,bjk->bik", x, y) / x.shape[2])] * 3
    return options[int(rng.integers(len(options)))] if options else None


MOST = 4096
"""Elements of a value."""


def _same(x: Any) -> Any:
    return x


def draw(seed: int, meshes: dict[tuple[int, ...], Mesh]) -> ShardedProgram:
    """Draws a program."""
    rng = np.random.default_rng(seed)
    mesh = meshes[list(MESHES)[int(rng.integers(len(MESHES)))]]
    count = int(rng.integers(1, 4))
    shapes = tuple(tuple(int(rng.choice(SIZES)) for _ in range(int(rng.integers(1, 4)))) for _ in range(count))
    values: list[Any] = [jax.ShapeDtypeStruct(s, np.float32) for s in shapes]
    steps: list[Step] = []
    while len(steps) < int(rng.integers(3, 9)):
        i, j = (int(n) for n in rng.integers(0, len(values), 2))
        drawn: Drawn | None
        plain: Callable[..., Any] | None = None
        if rng.random() < 0.2:
            options = specs_of(values[i].shape, mesh)
            sharding = NamedSharding(mesh, options[int(rng.integers(len(options)))])
            drawn, operands = ("constraint", lambda x, s=sharding: lax.with_sharding_constraint(x, s)), (i,)
            plain = _same
        elif rng.random() < 0.4:
            drawn, operands = _two(rng, values[i], values[j]), (i, j)
        elif min(values[i].shape, default=0) < 2:
            continue
        else:
            drawn, operands = _one(rng, values[i]), (i,)
        if drawn is None:
            continue
        made = jax.eval_shape(drawn[1], *[values[k] for k in operands])
        if made.size <= MOST and len(made.shape) <= 3:
            steps.append(Step(*drawn, operands, plain))
            values.append(made)
    results = tuple(sorted({len(values) - 1, int(rng.integers(count, len(values)))}))

    def spec(shape: tuple[int, ...]) -> P | None:
        options = specs_of(shape, mesh)
        return None if rng.random() < 0.2 else options[int(rng.integers(len(options)))]

    outs = tuple(spec(values[i].shape) if rng.random() < 0.5 else None for i in results)
    return ShardedProgram(mesh, shapes, tuple(steps), results, tuple(map(spec, shapes)), outs)


def make_meshes() -> dict[tuple[int, ...], Mesh]:
    """Returns the meshes of the programs."""
    return {shape: jm.make_mesh(shape, names) for shape, names in MESHES.items()}


def arguments_of(program: ShardedProgram, seed: int) -> list[Any]:
    """Returns random arguments, some of them arrays on the mesh already."""
    rng = np.random.default_rng(seed)
    args = [rng.standard_normal(s).astype(np.float32) for s in program.shapes]
    return [
        jax.device_put(x, NamedSharding(program.mesh, s)) if s is not None and rng.random() < 0.3 else x
        for x, s in zip(args, program.in_specs, strict=True)
    ]


def difference(program: ShardedProgram, seed: int, *, gradients: bool = False) -> str | None:
    """Runs a program sharded and unsharded; returns what differs, or None."""
    args = arguments_of(program, seed)
    sharded = jm.jit(program, mesh=program.mesh, in_shardings=program.in_specs, out_shardings=program.out_specs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = sharded.trace(*args)
        if traced.inexpressible is not None:
            return f"inexpressible: {traced.inexpressible}"
        wrong = _unlike(sharded(*args), jax.jit(program.unsharded)(*map(np.asarray, args)), "value")
        if wrong is None and gradients:
            every = tuple(range(len(args)))
            slope = jax.grad(lambda *a: _loss(program(*a)), every)
            got = jm.jit(slope, mesh=program.mesh, in_shardings=program.in_specs)(*args)
            want = jax.grad(lambda *a: _loss(program.unsharded(*a)), every)(*map(np.asarray, args))
            wrong = _unlike(got, want, "gradient")
            if wrong is None:
                # Outside of the program JAX derives it: for windows over a split dim even jax.jit gives a wrong value.
                got = jax.grad(lambda *a: _loss(sharded(*a)), every)(*args)
                wrong = _unlike(got, _gradient_of_jax(program, args), "gradient from outside")
    return wrong or _unkept(program, traced, args)


def _gradient_of_jax(program: ShardedProgram, args: Sequence[Any]) -> Any:
    """Returns the gradient by every argument that `jax.jit` gives for the program with its shardings."""
    with jax.set_mesh(program.mesh):
        theirs = jax.jit(program, in_shardings=program.in_specs, out_shardings=program.out_specs)
        return jax.grad(lambda *a: _loss(theirs(*a)), tuple(range(len(args))))(*args)


def _loss(values: Sequence[Any]) -> Any:
    return sum(jnp.sum(jnp.sin(v)) for v in values)


def _unlike(got: Sequence[Any], want: Sequence[Any], what: str) -> str | None:
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        x, y = np.asarray(a), np.asarray(b)
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{what} {i} is {x.dtype}{x.shape}, unsharded {y.dtype}{y.shape}"
        scale = 1 + float(np.max(np.abs(y), initial=0))
        if not np.allclose(x, y, rtol=1e-4, atol=2e-5 * scale, equal_nan=True):
            return f"{what} {i} differs by {np.max(np.abs(x - y))} of {scale}"
    return None


def _unkept(program: ShardedProgram, traced: Any, args: Sequence[Any]) -> str | None:
    """Returns an argument or a result whose sharding is not the one asked for."""
    asked = [*zip(program.in_specs, ["argument"] * len(args), strict=True)]
    asked += zip(program.out_specs, ["result"] * len(program.out_specs), strict=True)
    decided = {d.op: d.text for d in traced.decisions if d.kind in ("asked", "propagated")}
    counts = {"argument": 0, "result": 0}
    for spec, what in asked:
        name = f"{what} {counts[what]}"
        counts[what] += 1
        if spec is not None and not _is_spec(decided[name], spec, program.mesh):
            return f"{name} was asked for as {spec}, and is {decided[name]}"
    return None


def _is_spec(text: str, spec: P, mesh: Mesh) -> bool:
    def rows(entries: Any) -> list[tuple[str, ...]]:
        found = [e if isinstance(e, tuple) else (e,) if e else () for e in entries]
        while found and not found[-1]:
            found.pop()
        return found

    return rows(eval(text, {"P": lambda *e: e})) == rows(spec)


def run(count: int, seed: int, say: Callable[[str], None]) -> Outcome:
    """Compares random programs, and reports those that differ; every fifth with its gradients."""
    meshes, failures, started = make_meshes(), list[str](), time.perf_counter()
    for number in range(seed, seed + count):
        program = draw(number, meshes)
        try:
            wrong = difference(program, number, gradients=number % 5 == 0)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong is not None:
            failures.append(f"seed {number}: {wrong}\n{program}")
            say(failures[-1])
        if number % 50 == 49:
            jax.clear_caches()
    proved = f"{count} random programs with random shardings give what they give unsharded, every fifth with gradients"
    return Outcome("programs with shardings", proved, count, tuple(failures), time.perf_counter() - started)
