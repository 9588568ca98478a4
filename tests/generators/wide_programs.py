"""Random plain programs of all element types, also of dims without elements, with Fourier transforms, over meshes.

NumPy computes the results while a program is drawn. Values that every order of operations computes alike (integers that
their type holds) are compared bit for bit, the others within their type's precision; no operation that turns a small
error into a large one takes the latter.

`python -m tests.generators.wide_programs 20000` draws so many, at XLA's own level of optimization.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxmesh as jm

Array = np.ndarray[Any, Any]
SHAPES = {"2x4": (2, 4), "8": (8,), "1x2": (1, 2), "2x2x2": (2, 2, 2), "4x1": (4, 1), "1x1": (1, 1)}
NARROW = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32", "complex64"]
STORED = ["int4", "uint4", "float8_e4m3fn", "float8_e5m2"]
WIDE = ["int64", "uint64", "float64", "complex128"]
SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 16)


def kind_of(dtype: Any) -> str:
    """b(ool), i(nteger), f(loat), c(omplex)."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return "b"
    if jnp.issubdtype(dtype, jnp.integer):
        return "i"
    return "c" if jnp.issubdtype(dtype, jnp.complexfloating) else "f"


def precision(dtype: Any) -> float:
    return float(ml_dtypes.finfo(np.zeros(0, dtype).real.dtype).eps)


@dataclass(frozen=True)
class Value:
    """What NumPy computed, whether any order of operations computes the same bits, else the least precision so far."""

    x: Array
    exact: bool = True
    precision: float = 0


@dataclass(frozen=True)
class Step:
    """One operation: on JAX's arrays, and on which earlier values."""

    name: str
    apply: Callable[..., Any]
    operands: tuple[int, ...]


@dataclass(eq=False)
class Program:
    """Steps over arguments, with the mesh and the shardings of both ends."""

    args: list[Array]
    steps: list[Step]
    results: list[int]
    expected: list[Value]
    mesh: Any
    ins: tuple[P, ...]
    outs: tuple[P, ...] | None

    def __call__(self, *args: Any) -> Any:
        values = list(args)
        for step in self.steps:
            values.append(step.apply(*[values[i] for i in step.operands]))
        return tuple(values[i] for i in self.results)

    def __str__(self) -> str:
        rows = [f"  {a.dtype}{list(a.shape)} {s}" for a, s in zip(self.args, self.ins, strict=True)]
        rows += [f"  %{len(self.args) + n} = {s.name} {s.operands}" for n, s in enumerate(self.steps)]
        return "\n".join([f"over {dict(self.mesh.shape)}, results {self.results} as {self.outs}", *rows])


def meshes() -> dict[str, Any]:
    return {name: jm.make_mesh(shape, ("z", "y", "x")[3 - len(shape) :]) for name, shape in SHAPES.items()}


def is_settled(x: Array) -> bool:
    """Whether all elements are integers that their type holds, also sums of a few of them."""
    if kind_of(x.dtype) in "bi" or not x.size:
        return True
    parts = [x.real, x.imag] if kind_of(x.dtype) == "c" else [x]
    limit = 0.25 / precision(x.dtype)
    return all(bool(np.all((w := p.astype(np.float64)) == np.round(w)) and np.abs(w).max() <= limit) for p in parts)


class Drawing:
    """Draws one program."""

    def __init__(self, seed: int, over: dict[str, Any]) -> None:
        self.r = np.random.default_rng(seed)
        self.mesh = over[str(self.r.choice(list(over)))]
        self.types = NARROW + (WIDE if jax.config.read("jax_enable_x64") else [])
        self.values: list[Value] = []
        self.steps: list[Step] = []

    def pick(self, row: Any) -> Any:
        return row[int(self.r.integers(len(row)))]

    def argument(self) -> Array:
        dtype = self.pick(self.types + STORED[: int(self.r.integers(5))])
        shape = tuple(int(self.pick(SIZES)) for _ in range(int(self.r.integers(0, 4))))
        low = 0 if kind_of(dtype) == "b" or str(dtype).startswith("u") else -3
        x = self.r.integers(low, 2 if kind_of(dtype) == "b" else 4, shape)
        imaginary = 1j * self.r.integers(-3, 4, shape) if kind_of(dtype) == "c" else 0
        return np.asarray(x + imaginary).astype(jnp.dtype(dtype))

    def spec(self, shape: tuple[int, ...]) -> P:
        """A random split of a shape; every axis splits one dim at most."""
        rows: list[list[str]] = [[] for _ in shape]
        for axis in self.r.permutation(list(self.mesh.axis_names)).tolist() if shape else ():
            d = int(self.r.integers(len(shape)))
            count = int(np.prod([self.mesh.shape[a] for a in [*rows[d], axis]]))
            if self.r.random() < 0.7 and shape[d] % count == 0:
                rows[d].append(axis)
        return P(*[tuple(r) if len(r) > 1 else r[0] if r else None for r in rows])

    def add(self, name: str, apply: Callable[..., Any], reference: Callable[..., Any], *at: int, exact: bool) -> bool:
        """Adds a step if its result fits its type; `exact` is whether exact operands give an exact result."""
        xs = [self.values[i] for i in at]
        with np.errstate(all="ignore"):
            made = np.asarray(reference(*[v.x for v in xs]))
        wide = made.astype(np.complex128 if kind_of(made.dtype) == "c" else np.float64)
        if made.size > 4096 or not np.all(np.isfinite(wide)):
            return False
        exact = exact and all(v.exact for v in xs)
        if exact and not is_settled(made):
            return False
        if kind_of(made.dtype) in "fc" and made.size and np.abs(wide).max() > 1e4:
            return False
        self.steps.append(Step(name, apply, at))
        coarsest = max([v.precision for v in xs] + ([precision(made.dtype)] if kind_of(made.dtype) in "fc" else []))
        self.values.append(Value(made, exact, coarsest))
        return True

    def step(self) -> bool:
        at = int(self.r.integers(len(self.values)))
        x, draw = self.values[at].x, self.pick(DRAWS)
        if str(x.dtype) in STORED:
            draw = convert
        return draw(self, at, x)

    def program(self) -> Program:
        args = [self.argument() for _ in range(int(self.r.integers(1, 4)))]
        self.values = [Value(a) for a in args]
        for _ in range(40):
            if len(self.steps) >= 1 + int(self.r.integers(8)):
                break
            self.step()
        count = len(self.values)
        results = [count - 1, *([int(self.r.integers(count))] if self.r.random() < 0.4 else [])]
        expected = [self.values[i] for i in results]
        outs = None if self.r.random() < 0.5 else tuple(self.spec(v.x.shape) for v in expected)
        ins = tuple(self.spec(a.shape) for a in args)
        return Program(args, self.steps, results, expected, self.mesh, ins, outs)


# --- the operations: each draws itself on one value ------------------------------------------------------------------


def _typed(f: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's function with the type of its first operand, computed widely."""

    def run(x: Array, *rest: Array) -> Array:
        kind = kind_of(x.dtype)
        wide = {"f": np.float64, "c": np.complex128}.get(kind, x.dtype)
        return np.asarray(f(x.astype(wide), *[y.astype(wide) for y in rest])).astype(x.dtype)

    return run


def unary(d: Drawing, at: int, x: Array) -> bool:
    kind = kind_of(x.dtype)
    rows = {
        "b": [("not", lax.bitwise_not, np.logical_not, True)],
        "i": [("not", lax.bitwise_not, np.invert, True), ("sign", lax.sign, np.sign, True)],
        "f": [("sin", lax.sin, np.sin, False), ("tanh", lax.tanh, np.tanh, False), ("abs", lax.abs, np.abs, True),
              ("neg", lax.neg, np.negative, True), ("logistic", lax.logistic, lambda x: 1 / (1 + np.exp(-x)), False)],
        "c": [("conj", lax.conj, np.conj, True), ("neg", lax.neg, np.negative, True)],
    }  # fmt: skip
    name, ours, theirs, exact = d.pick(rows[kind])
    return d.add(name, ours, _typed(theirs), at, exact=exact)


def parts(d: Drawing, at: int, x: Array) -> bool:
    if kind_of(x.dtype) != "c":
        return False
    name, ours, theirs = d.pick([("real", lax.real, np.real), ("imag", lax.imag, np.imag)])
    return d.add(name, ours, theirs, at, exact=True)


def binary(d: Drawing, at: int, x: Array) -> bool:
    others = [i for i, v in enumerate(d.values) if v.x.shape == x.shape and v.x.dtype == x.dtype]
    other, kind = d.pick(others), kind_of(x.dtype)
    rows = [("add", lax.add, np.add), ("mul", lax.mul, np.multiply), ("sub", lax.sub, np.subtract)]
    if kind != "c":
        rows += [("max", lax.max, np.maximum), ("min", lax.min, np.minimum)]
    if kind == "b":
        rows = [("and", lax.bitwise_and, np.logical_and), ("xor", lax.bitwise_xor, np.logical_xor)]
    name, ours, theirs = d.pick(rows)
    return d.add(name, ours, _typed(theirs), at, other, exact=True)


def compare(d: Drawing, at: int, x: Array) -> bool:
    others = [i for i, v in enumerate(d.values) if v.x.shape == x.shape and v.x.dtype == x.dtype and v.exact]
    if not d.values[at].exact or kind_of(x.dtype) == "c":
        return False
    name, ours, theirs = d.pick([("lt", lax.lt, np.less), ("eq", lax.eq, np.equal)])
    return d.add(name, ours, theirs, at, d.pick(others), exact=True)


def select(d: Drawing, at: int, x: Array) -> bool:
    masks = [i for i, v in enumerate(d.values) if v.x.shape == x.shape and v.x.dtype == np.bool_]
    if not masks:
        return False
    return d.add("select", lambda m, a: lax.select(m, a, a + a if a.dtype != bool else ~a),
                 lambda m, a: np.where(m, a, ~a if a.dtype == bool else _typed(np.add)(a, a)), d.pick(masks), at,
                 exact=True)  # fmt: skip


def convert(d: Drawing, at: int, x: Array) -> bool:
    to = np.dtype(jnp.dtype(d.pick(d.types)))
    if kind_of(x.dtype) == "c" and kind_of(to) != "c":
        return False
    if not d.values[at].exact and kind_of(to) in "bi":
        return False
    wide = x.astype(np.complex128 if kind_of(x.dtype) == "c" else np.float64)
    if kind_of(to) == "i" and kind_of(x.dtype) != "b" and x.size:
        limits = ml_dtypes.iinfo(to)
        if wide.min() < limits.min or wide.max() > limits.max:
            return False

    def theirs(x: Array) -> Array:
        return (
            (x != 0) if to == np.bool_ else x.astype(np.float64).astype(to) if str(x.dtype) in STORED else x.astype(to)
        )

    return d.add(f"convert to {to}", lambda x: x.astype(to), theirs, at, exact=True)


def reduce(d: Drawing, at: int, x: Array) -> bool:
    axes = tuple(i for i in range(x.ndim) if d.r.random() < 0.6)
    kind = kind_of(x.dtype)
    rows: list[Any] = [("sum", jnp.sum, np.sum)]
    if kind == "b":
        rows = [("any", jnp.any, np.any), ("all", jnp.all, np.all)]
    elif kind != "c" and all(x.shape[i] for i in axes):
        rows += [("max", jnp.max, np.max), ("min", jnp.min, np.min)]
    name, ours, theirs = d.pick(rows)
    if name == "sum":
        return d.add(f"sum {axes}", lambda x: jnp.sum(x, axes, dtype=x.dtype), _typed(lambda x: np.sum(x, axes)), at,
                     exact=True)  # fmt: skip
    return d.add(f"{name} {axes}", lambda x: ours(x, axes), _typed(lambda x: theirs(x, axes)), at, exact=True)


def arg_max(d: Drawing, at: int, x: Array) -> bool:
    if not x.ndim or not d.values[at].exact or kind_of(x.dtype) == "c":
        return False
    axis = int(d.r.integers(x.ndim))
    if not x.shape[axis]:
        return False
    return d.add(f"argmax {axis}", lambda x: lax.argmax(x, axis, jnp.int32),
                 lambda x: np.argmax(x, axis).astype(np.int32), at, exact=True)  # fmt: skip


def moved(d: Drawing, at: int, x: Array) -> bool:
    """Reshapes, transposes, slices, reverses, pads, rolls, joins with itself, gathers rows."""
    if not x.ndim:
        return d.add(
            "broadcast", lambda x: jnp.broadcast_to(x, (8, 3)), lambda x: np.broadcast_to(x, (8, 3)), at, exact=True
        )
    axis = int(d.r.integers(x.ndim))
    size, order = x.shape[axis], tuple(d.r.permutation(x.ndim).tolist())
    stop = int(d.r.integers(size + 1))
    start, shift = int(d.r.integers(stop + 1)), int(d.r.integers(-3, 4))
    cut = (*[slice(None)] * axis, slice(start, stop, 1 + int(d.r.integers(2))))
    widths = [(int(d.r.integers(3)), int(d.r.integers(3))) if i == axis else (0, 0) for i in range(x.ndim)]
    rows: list[tuple[str, Callable[..., Any], Callable[..., Any]]] = [
        ("flatten", lambda x: x.reshape(-1), lambda x: x.reshape(-1)),
        (
            "merge",
            lambda x: x.reshape(-1, x.shape[-1]) if x.size else x,
            lambda x: x.reshape(-1, x.shape[-1]) if x.size else x,
        ),
        (f"transpose {order}", lambda x: x.transpose(order), lambda x: x.transpose(order)),
        (f"slice {cut}", lambda x: x[cut], lambda x: x[cut]),
        (f"reverse {axis}", lambda x: jnp.flip(x, axis), lambda x: np.flip(x, axis)),
        (f"pad {widths}", lambda x: jnp.pad(x, widths), lambda x: np.pad(x, widths)),
        (f"roll {shift} {axis}", lambda x: jnp.roll(x, shift, axis), lambda x: np.roll(x, shift, axis)),
        (f"join {axis}", lambda x: jnp.concatenate([x, x], axis), lambda x: np.concatenate([x, x], axis)),
    ]
    if size:
        index = d.r.integers(0, size, 1 + int(d.r.integers(8))).tolist()
        rows.append(
            (f"take {index} {axis}", lambda x: jnp.take(x, jnp.array(index), axis), lambda x: np.take(x, index, axis))
        )
    name, ours, theirs = d.pick(rows)
    return d.add(name, ours, theirs, at, exact=True)


def along(d: Drawing, at: int, x: Array) -> bool:
    """Sorts, or sums cumulatively."""
    if not x.ndim or kind_of(x.dtype) in "cb":
        return False
    axis = int(d.r.integers(x.ndim))
    if d.r.random() < 0.5:
        return d.add(f"sort {axis}", lambda x: lax.sort(x, axis), lambda x: np.sort(x, axis), at, exact=True)
    return d.add(f"cumsum {axis}", lambda x: lax.cumsum(x, axis), _typed(lambda x: np.cumsum(x, axis)), at, exact=True)


def product(d: Drawing, at: int, x: Array) -> bool:
    if x.ndim < 2 or kind_of(x.dtype) == "b":
        return False
    return d.add("x @ x.T", lambda x: jnp.einsum("...ij,...kj->...ik", x, x),
                 _typed(lambda x: np.einsum("...ij,...kj->...ik", x, x)), at, exact=True)  # fmt: skip


def update(d: Drawing, at: int, x: Array) -> bool:
    if not x.ndim or not x.shape[0] or kind_of(x.dtype) == "b":
        return False
    index = sorted(set(d.r.integers(0, x.shape[0], 3).tolist()))

    def theirs(x: Array) -> Array:
        y = x.copy()
        y[index] = _typed(np.add)(x[index], x[: len(index)][[0] * len(index)])
        return y

    return d.add(f"add at {index}", lambda x: x.at[np.array(index)].add(x[:1]), theirs, at, exact=True)


def fourier(d: Drawing, at: int, x: Array) -> bool:
    """A Fourier transform of the last dims, or one and its inverse."""
    kind = kind_of(x.dtype)
    if not x.ndim or not x.shape[-1] or str(x.dtype) in ("float16", "bfloat16") or kind in "bi":
        return False
    to = {4: np.complex64, 8: np.complex64 if kind == "c" else np.complex128, 16: np.complex128}[x.dtype.itemsize]
    real = np.zeros(0, to).real.dtype
    rows: list[tuple[str, Callable[..., Any], Any]] = [
        ("fft", lambda np: np.fft.fft, to),
        ("ifft", lambda np: np.fft.ifft, to),
        ("real(ifft(fft))", lambda np: lambda x: np.real(np.fft.ifft(np.fft.fft(x))), real),
    ]
    if x.ndim > 1 and x.shape[-2]:
        rows.append(("fft2", lambda np: np.fft.fft2, to))
    if kind == "f":
        rows += [("rfft", lambda np: np.fft.rfft, to)]
        rows += [("rfft, irfft", lambda np: lambda x: np.fft.irfft(np.fft.rfft(x), x.shape[-1]), real)]
    name, of, dtype = d.pick(rows)
    return d.add(name, of(jnp), lambda x: np.asarray(of(np)(x)).astype(dtype), at, exact=False)


DRAWS = [unary, parts, binary, binary, compare, select, convert, convert, reduce, reduce, arg_max, moved, moved, moved,
         along, product, update, *[fourier] * 6]  # fmt: skip


# --- the comparison --------------------------------------------------------------------------------------------------


def difference(program: Program, found: Any) -> str | None:
    """What is wrong about results; None if nothing is."""
    for number, (want, got) in enumerate(zip(program.expected, found, strict=True)):
        y = np.asarray(got)
        if y.shape != want.x.shape or y.dtype != want.x.dtype:
            return f"result {number} is {y.dtype}{list(y.shape)}, not {want.x.dtype}{list(want.x.shape)}"
        if not want.x.size:
            continue
        wide = np.complex128 if kind_of(y.dtype) == "c" else np.float64
        a, b = want.x.astype(wide), y.astype(wide)
        # A type of few bits is rounded at each of a few steps.
        error, scale = np.abs(a - b).max(), max(1.0, np.abs(a).max())
        if not np.isfinite(error) or error > (0 if want.exact else 64 * scale * want.precision):
            return f"result {number} differs by {error}, of {scale}"
    return None


def draw(seed: int, over: dict[str, Any]) -> Program:
    return Drawing(seed, over).program()


def fault(program: Program) -> str | None:
    """What is wrong about a program: a value, a type, or an error where `jax.jit` computes; None if nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            message = difference(program, _jitted(jm.jit, program, program.ins, program.outs)(*program.args))
        except Exception as error:
            message = f"{type(error).__name__}: {str(error)[:300]}"
        if message is None:
            return None
        ins, outs = (s and tuple(NamedSharding(program.mesh, x) for x in s) for s in (program.ins, program.outs))
        try:
            of_jax = difference(program, _jitted(jax.jit, program, ins, outs)(*program.args))
        except Exception as error:
            of_jax = f"{type(error).__name__}: {str(error)[:300]}"
    return message if of_jax is None else f"{message}; jax.jit: {of_jax}"


def _jitted(jit: Any, program: Program, ins: Any, outs: Any) -> Any:
    options = {"mesh": program.mesh} if jit is jm.jit else {}
    return jit(program, in_shardings=ins, **options, **({} if outs is None else {"out_shardings": outs}))


def main(count: int, first: int = 0) -> None:
    over = meshes()
    wrong = 0
    for seed in range(first, first + count):
        with jax.enable_x64(seed % 4 == 0):
            program = draw(seed, over)
            if (message := fault(program)) is not None:
                wrong += 1
                print(f"seed {seed}: {message}\n{program}", flush=True)
        if seed % 100 == 99:
            jax.clear_caches()
            print(f"{seed + 1 - first} programs, {wrong} wrong", flush=True)


if __name__ == "__main__":
    jm.emulate(8)
    main(*map(int, sys.argv[1:]))
