"""A case of a TTIR op: its operands, its attributes, its meaning in NumPy; and the checks that every case takes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.dialects import ttir as ttir_dialect
from jaxmesh.dialects.op import OpDef, Trait
from jaxmesh.dialects.perform import evaluate
from jaxmesh.jaxprs import compat

BF16 = jnp.bfloat16
MESH = {"x": 2}


@dataclass(frozen=True)
class Spec:
    """How one operand is made."""

    shape: tuple[int, ...]
    dtype: Any = np.float32
    low: float = -3.0
    high: float = 3.0

    def make(self, rng: np.random.Generator) -> np.ndarray:
        if self.dtype == np.bool_:
            return rng.integers(0, 2, self.shape).astype(np.bool_)
        if np.issubdtype(self.dtype, np.integer):
            return rng.integers(int(self.low), int(self.high) + 1, self.shape).astype(self.dtype)
        if self.low == self.high:
            return np.full(self.shape, self.low, self.dtype)
        return rng.uniform(self.low, self.high, self.shape).astype(self.dtype)


def F(*shape: int, low: float = -3.0, high: float = 3.0) -> Spec:
    return Spec(shape, np.float32, low, high)


def H(*shape: int, low: float = -3.0, high: float = 3.0) -> Spec:
    return Spec(shape, BF16, low, high)


def N(*shape: int, low: int = -9, high: int = 9, dtype: Any = np.int32) -> Spec:
    return Spec(shape, dtype, low, high)


def B(*shape: int) -> Spec:
    return Spec(shape, np.bool_)


@dataclass(frozen=True)
class Case:
    row: str
    operands: tuple[Spec, ...]
    oracle: Callable[..., Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    out: Any = None
    """Element types of the results, where they are not those of the oracle."""
    tag: str = ""
    former: bool = False
    """True of a form of earlier versions, which is read and not printed."""

    @property
    def is_printed(self) -> bool:
        """True if upstream has the op in this form."""
        row = ttir_dialect.OPS[self.row]
        needed = {a.name for a in row.attributes if a.required}
        complete = needed <= self.attributes.keys() | row.assumptions.keys()
        return complete and not self.former and Trait.NOT_UPSTREAM not in row.traits

    @property
    def is_printed_in_ttnn(self) -> bool:
        """True if it is printed, and the pass to TTNN takes the op; others become ops of TTIR before it."""
        if any(a.later and a.name in self.attributes for a in self.definition.attributes):
            return False
        return self.is_printed and Trait.DECOMPOSED_FOR_TTNN not in ttir_dialect.OPS[self.row].traits

    @property
    def definition(self) -> OpDef:
        """The definition that the case follows."""
        row = ttir_dialect.OPS[self.row]
        return row.former if self.former and row.former is not None else row

    @property
    def name(self) -> str:
        types = "-".join(f"{np.dtype(s.dtype).name}{list(s.shape)}" for s in self.operands)
        attrs = "-".join(f"{k}={v}" for k, v in self.attributes.items() if np.size(v) < 9)
        return f"{self.row}-{types}-{attrs}-{self.tag}"[:120]


def wide(x: Any) -> Any:
    """bfloat16 as NumPy can compute with it."""
    return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == BF16 else x


def expected(case: Case, operands: list[np.ndarray]) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        made = case.oracle(*map(wide, operands))
    outs = list(made) if isinstance(made, (list, tuple)) else [made]
    half = any(x.dtype == BF16 for x in operands)
    types = case.out if isinstance(case.out, tuple) else (case.out,) * len(outs)
    cast = []
    for out, dtype in zip(outs, types, strict=True):
        array = np.asarray(out)
        if dtype is None:
            floats = np.issubdtype(array.dtype, np.floating)
            dtype = (BF16 if half else np.float32) if floats else np.int32 if array.dtype == np.int64 else array.dtype
        cast.append(array.astype(dtype))
    return cast


def assert_close(name: str, got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype, name
    if want.dtype == BF16:
        np.testing.assert_allclose(wide(got), wide(want), rtol=3e-2, atol=3e-2, err_msg=name)
    elif np.issubdtype(want.dtype, np.floating):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=name)
    else:
        np.testing.assert_array_equal(got, want, err_msg=name)


def structs(arrays: list[np.ndarray]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]


def perform(case: Case, results: list[np.ndarray], operands: list[Any]) -> list[Any]:
    return evaluate(case.definition, operands, case.attributes, structs(results), MESH)


def assert_varies_as_operands(case: Case) -> None:
    """A result varies over an axis if and only if an operand does, whichever it is."""
    operands = [s.make(np.random.default_rng(0)) for s in case.operands]
    results = expected(case, operands)
    mesh = AbstractMesh((2,), ("x",))

    def typed(own: int) -> set[bool]:
        made: list[Any] = []

        def f(*xs: Any) -> Any:
            xs = [jax.lax.pcast(x, ("x",), to="varying") if i == own else x for i, x in enumerate(xs)]
            made.extend(perform(case, results, xs))
            return jnp.zeros(())

        jax.make_jaxpr(jax.shard_map(f, mesh=mesh, in_specs=P(), out_specs=P()))(*operands)
        return {"x" in jax.typeof(y).manual_axis_type.varying for y in made}

    assert typed(-1) == {False}
    for own in range(len(operands)):
        ignored = (case.row, own) in {("get_dimension_size", 0), ("slice_dynamic", 2)}
        # Query comes of one operand, key and value of the other.
        apart = case.row == "split_query_key_value_and_split_heads" and len(operands) == 2
        assert typed(own) == ({True, False} if apart else {not ignored}), own


@dataclass(frozen=True)
class Trial:
    """A case with operands for two devices; some of its own, some shared."""

    case: Case
    own: list[bool]
    arguments: list[np.ndarray]
    want: list[list[np.ndarray]]

    def perform(self, operands: list[Any]) -> list[Any]:
        pairs = zip(operands, self.own, strict=True)
        return perform(self.case, self.want[0], [jm.full_to_shard(x, P("x"))[0] if o else x for x, o in pairs])


def trial(case: Case) -> Trial:
    seed = zlib.crc32(case.name.encode())
    rng = np.random.default_rng(seed)
    copies = [[s.make(rng) for s in case.operands] for _ in range(2)]
    own = [bool(seed >> i & 1) for i in range(len(case.operands))]
    if case.operands and not any(own):
        own[0] = True
    seen = [[copies[d][i] if own[i] else copies[0][i] for i in range(len(own))] for d in range(2)]
    arguments = [np.stack([copies[0][i], copies[1][i]]) if own[i] else copies[0][i] for i in range(len(own))]
    return Trial(case, own, arguments, [expected(case, xs) for xs in seen])


def assert_cases(cases: list[Case]) -> None:
    """Runs cases in one program, which takes much less time than one each."""
    trials = [trial(c) for c in cases]

    def f(*xs: list[Any]) -> list[Any]:
        outs = [t.perform(x) for t, x in zip(trials, xs, strict=True)]
        return [[jm.shard_to_full(_varying(y)[None], P("x")) for y in row] for row in outs]

    got = jm.jit(f, mesh=jm.make_mesh((2,), ("x",)))(*[t.arguments for t in trials])
    for t, outs in zip(trials, got, strict=True):
        for r, stacked in enumerate(outs):
            for device in range(2):
                assert_close(t.case.name, np.asarray(stacked)[device], t.want[device][r])


def _varying(y: Any) -> Any:
    return y if "x" in jax.typeof(y).manual_axis_type.varying else compat.vary(y, ("x",))


def of_each_form(cases: list[Case]) -> list[Case]:
    """One case per row, count of operands and set of attributes."""
    return list({(c.row, len(c.operands), *sorted(c.attributes)): c for c in cases}.values())
