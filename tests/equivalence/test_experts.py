"""The exchanges of a mixture of experts, against loops over devices and tokens in NumPy."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.errors import VerifyError
from tests.equivalence.test_one_account import difference

MESHES = ((1, 8), (2, 4), (4, 2))
AROUND = "shard_type = #ttcore.shard_type<devices>, shard_direction = #ttcore.shard_direction"


def module(case: Case, number: str) -> str:
    """Returns a text that dispatches, and combines: its arguments and results have the devices as their first dims."""
    count = 0
    lines: list[str] = []

    def line(operation: str, operands: list[str], properties: str, *types: str) -> list[str]:
        nonlocal count
        names = [f"%{count + i}" for i in range(len(types))]
        count += len(types)
        given = ", ".join(kinds[x] for x in operands)
        lines.append(
            f'    {", ".join(names)} = "ttir.{operation}"({", ".join(operands)}) <{{{properties}}}> : ({given}) -> '
            f"({', '.join(types)})"
        )
        kinds.update(zip(names, types, strict=True))
        return names

    def tensor(shape: Any, kind: str) -> str:
        return f"tensor<{'x'.join(map(str, shape))}x{kind}>"

    def shards(x: str, direction: str, shape: Any, kind: str) -> str:
        around = f"{AROUND}<{direction}>, shard_shape = array<i64: {', '.join(map(str, case.mesh))}"
        around += f"{', 1' * len(shape)}>, shard_dims = array<i64: 0, 1>"
        sizes = case.mesh if direction == "shard_to_full" else (1, 1)
        return line("mesh_shard", [x], around, tensor((*sizes, *shape), kind))[0]

    def reshaped(x: str, shape: Any, kind: str) -> str:
        return line("reshape", [x], f"shape = [{', '.join(f'{n} : i32' for n in shape)}]", tensor(shape, kind))[0]

    kinds: dict[str, str] = {}
    inputs: list[str] = []
    for i, (full, kind) in enumerate(zip(case.arguments(np.uint16), ("bf16", number, number, "bf16"), strict=True)):
        kinds[f"%arg{i}"] = tensor(full.shape, kind)
        inputs.append(reshaped(shards(f"%arg{i}", "full_to_shard", full.shape[2:], kind), full.shape[2:], kind))
    x, chosen, mapping, y = inputs
    group = f"cluster_axis = {case.axis} : i64, num_devices = {case.n} : i64"
    types = tensor((*case.gathered, case.x.shape[-1]), "bf16"), tensor((*case.gathered, case.k), number)
    results = line("all_to_all_dispatch", [x, chosen, mapping], group, *types)
    group += f", num_experts_per_tok = {case.k} : i64, output_shard_dim = {case.dim} : i64"
    results += line("all_to_all_combine", [y, results[1], mapping], group, tensor(case.result, "bf16"))
    outs: list[str] = []
    for value, array in zip(results, case.expected(), strict=True):
        kind = kinds[value].rpartition("x")[2][:-1]
        outs.append(shards(reshaped(value, (1, 1, *array.shape[1:]), kind), "shard_to_full", array.shape[1:], kind))
    listed = ", ".join(f"%arg{i}: {kinds[f'%arg{i}']}" for i in range(4))
    given = ", ".join(kinds[v] for v in outs)
    end = f"    return {', '.join(outs)} : {given}"
    return "\n".join([f"module {{\n  func.func @main({listed}) -> ({given}) {{", *lines, end, "  }\n}\n"])


class Case:
    """Random shards of a mixture of experts on a mesh: by device, row-major over the mesh."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.mesh = MESHES[seed % 3]
        self.axis = int(rng.integers(2))
        self.n, devices = self.mesh[self.axis], 8
        batch, seq, hidden, each = (int(rng.integers(1, n)) for n in (4, 6, 5, 4))
        experts, self.k = devices * each, int(rng.integers(1, 5))
        self.dim = 2 if (seq % self.n == 0 and rng.integers(2)) else 1
        owners = rng.permutation(np.repeat(np.arange(devices), each))
        self.mapping = np.zeros((1, 1, experts, devices), np.uint16)
        self.mapping[0, 0, np.arange(experts), owners] = 1
        if rng.integers(3) == 0:
            # Experts that no device shows.
            self.mapping[0, 0, rng.integers(experts)] = 0
        tokens = (devices, batch, 1, seq) if rng.integers(2) else (devices, batch, seq, 1)
        self.x = rng.normal(size=(*tokens, hidden)).astype(ml_dtypes.bfloat16)
        self.chosen = rng.integers(0, experts, (*tokens, self.k)).astype(np.uint16)
        self.y = rng.normal(size=(devices, each, batch * self.n, seq, hidden)).astype(ml_dtypes.bfloat16)
        self.gathered = (1, batch * self.n, seq)
        whole = (batch, seq) if self.dim == 1 else (batch * self.n, seq // self.n)
        self.result = (self.k, *whole, hidden)

    def arguments(self, numbers: Any) -> list[Any]:
        """Returns the shards of the arguments, the devices first, with numbers of experts of a type."""
        mapping = np.stack([self.mapping] * 8)
        kinds = self.x.dtype, numbers, numbers, self.y.dtype
        whole = zip((self.x, self.chosen, mapping, self.y), kinds, strict=True)
        return [array.astype(kind).reshape(*self.mesh, *array.shape[1:]) for array, kind in whole]

    def group(self, device: int) -> list[int]:
        """Returns the devices along the axis of a device, in order."""
        place = np.unravel_index(device, self.mesh)
        return [d for d in range(8) if np.unravel_index(d, self.mesh)[1 - self.axis] == place[1 - self.axis]]

    def expected(self) -> tuple[Any, Any, Any]:
        """Returns by device what it has after the dispatch, the numbers of experts, and after the combine."""
        hidden, k = self.x.shape[-1], self.k
        mine = self.x[0].size // hidden
        dispatched = np.zeros((8, mine * self.n, hidden), self.x.dtype)
        metadata = np.zeros((8, mine * self.n, k), np.uint16)
        combined = np.zeros((8, k, mine, hidden), self.x.dtype)
        for sender in range(8):
            tokens, chosen = self.x[sender].reshape(mine, hidden), self.chosen[sender].reshape(mine, k)
            for receiver in self.group(sender):
                for t in range(mine):
                    row = self.group(sender).index(sender) * mine + t
                    metadata[receiver, row] = chosen[t]
                    if any(self.mapping[0, 0, e, receiver] == 1 for e in chosen[t]):
                        dispatched[receiver, row] = tokens[t]
        for holder in range(8):
            experts = [e for e in range(self.mapping.shape[2]) if self.mapping[0, 0, e, holder] == 1]
            rows = self.y[holder].reshape(len(self.y[holder]), -1, hidden)
            for t, chosen in enumerate(metadata[holder].tolist()):
                for local, e in enumerate(experts):
                    if e in chosen:
                        combined[self.group(holder)[t // mine], chosen.index(e), t % mine] = rows[local, t]
        return (
            dispatched.reshape(8, *self.gathered, hidden),
            metadata.reshape(8, *self.gathered, k),
            combined.reshape(8, *self.result),
        )


@pytest.mark.parametrize("seed", range(24))
def test_text(seed: int) -> None:
    case = Case(seed)
    number, kind = (("ui16", np.uint16), ("i32", np.int32))[seed % 2]
    mesh, args = jm.make_mesh(case.mesh), case.arguments(kind)
    read = jm.from_mlir(module(case, number), mesh)
    lowered = read.lower()
    assert lowered.as_text().count('"ttnn.all_to_all_') == 2
    assert difference(lowered) is None
    for program in (read, jm.from_mlir(read.as_text(), mesh), jm.from_mlir(lowered.as_text(), mesh)):
        for got, wanted in zip(program.lower().compile()(*args), case.expected(), strict=True):
            np.testing.assert_array_equal(np.asarray(got).reshape(wanted.shape), wanted)


@pytest.mark.parametrize("dialect", ["ttir", "ttnn"])
@pytest.mark.parametrize("seed", range(8))
def test_older_compilers_leave_the_dim_of_the_tokens_out(seed: int, dialect: str) -> None:
    case = Case(seed)
    mesh = jm.make_mesh(case.mesh)
    read = jm.from_mlir(module(case, "i32"), mesh)
    text = (read if dialect == "ttir" else read.lower()).as_text()
    older = re.sub(r"(?<=[<{ ])output_shard_dim = . : i64(, )?|, output_shard_dim = . : i64", "", text)
    assert "output_shard_dim" not in older
    again = jm.from_mlir(older, mesh)
    assert "output_shard_dim" in again.lower().as_text()
    for got, wanted in zip(again.lower().compile()(*case.arguments(np.int32)), case.expected(), strict=True):
        np.testing.assert_array_equal(np.asarray(got).reshape(wanted.shape), wanted)


WRONG = [
    ("num_devices = 2", "num_devices = 3", "num_devices = 3, but mesh axis 'y' has 2 devices"),
    ("output_shard_dim = 1", "output_shard_dim = 3", "output_shard_dim is 1 or 2, got 3"),
    ("num_experts_per_tok = 2", "num_experts_per_tok = 1", "num_experts_per_tok = 1, but expert_metadata has 2"),
    ("cluster_axis = 0", "cluster_axis = 2", "cluster_axis = 2 is no axis of the mesh"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG, ids=[row[1] for row in WRONG])
def test_errors(old: str, new: str, message: str) -> None:
    case = next(c for c in map(Case, range(1, 300, 3)) if (c.mesh, c.axis, c.k, c.dim) == ((2, 4), 0, 2, 1))
    text = module(case, "ui16")
    assert old in text
    with pytest.raises(VerifyError, match=re.escape(message)):
        jm.from_mlir(text.replace(old, new), jm.make_mesh(case.mesh))
