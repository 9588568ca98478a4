"""Exports of `jax.export` that hold mesh tensors: written, and read by this process and by others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

pytestmark = pytest.mark.slow(but_one_in=3)

READER = """
import sys
import numpy as np
import jaxmesh as jm, jax
from jax import export
from jax.sharding import PartitionSpec as P
{before}
read = export.deserialize(open(sys.argv[1], "rb").read())
given = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in read.in_avals]
((tensors, _), _) = read.in_tree.unflatten(given)
mesh = tensors["t"].mesh
split = jm.jit(lambda x: jm.full_to_shard(x, P("y", "x")), mesh=mesh)
x = np.arange(32, dtype=np.float32).reshape(4, 8)
out = read.call({{"t": split(x)}}, np.float32(3))
for c, shard in out["twice"].shards():
    np.testing.assert_array_equal(shard, 3 * x[2 * c[0] : 2 * c[0] + 2, 2 * c[1] : 2 * c[1] + 2])
for c, shard in out["sum"].shards():
    np.testing.assert_array_equal(shard, x[2 * c[0] : 2 * c[0] + 2].reshape(2, 4, 2).sum(1))
assert out["sum"].varying == ("y",) and out["sum"].mesh == mesh
print([d.id for d in mesh.devices.flat])
"""


def _written_export(file: Path, devices: Any) -> None:
    mesh = jm.make_mesh((2, 4), devices=devices)
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    tensor = jm.jit(lambda x: jm.full_to_shard(x, P("y", "x")), mesh=mesh)(x)
    f = jm.jit(lambda d, by: {"twice": d["t"] * by, "sum": lax.psum(d["t"], "x")}, mesh=mesh, check_replication=False)
    given = {"t": tensor}, np.float32(3)
    exported = jax.export.export(jax.jit(f))(*given)
    file.write_bytes(exported.serialize())
    again = jax.export.deserialize(bytearray(file.read_bytes()))
    assert (again.in_tree, again.out_tree) == (exported.in_tree, exported.out_tree)
    for a, b in zip(jax.tree.leaves(again.call(*given)), jax.tree.leaves(f(*given)), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b))


def _read_elsewhere(file: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    code = [sys.executable, "-c", READER.format(before=before), str(file)]
    return subprocess.run(code, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow(but_one_in=2)
@pytest.mark.parametrize(
    ("before", "ids"),
    [
        ("", range(7, -1, -1)),
        # The context's own mesh comes first; without enough devices of these numbers, others do.
        ("jax.set_mesh(jm.make_mesh((2, 4)))", range(8)),
    ],
    ids=["numbers", "context"],
)
def test_an_export_of_tensors_is_read_in_another_process(tmp_path: Path, before: str, ids: Any) -> None:
    _written_export(tmp_path / "exported", jax.devices()[7::-1])
    done = _read_elsewhere(tmp_path / "exported", before)
    assert done.stdout.strip() == str(list(ids)), done.stderr


@pytest.mark.slow
def test_an_export_of_tensors_is_read_with_other_devices_or_a_named_error(tmp_path: Path) -> None:
    _written_export(tmp_path / "exported", jax.devices()[8:16])
    done = _read_elsewhere(tmp_path / "exported", "jm.emulate(8); jax.devices()")
    assert done.stdout.strip() == str(list(range(8))), done.stderr
    done = _read_elsewhere(tmp_path / "exported", "jm.emulate(4); jax.devices()")
    assert "DeviceCountError: 8 devices are wanted, but only 4 exist" in done.stderr
