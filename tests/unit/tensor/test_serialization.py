"""The bytes of a mesh tensor's tree, in an export of `jax.export`."""

from __future__ import annotations

import jax
import pytest

from jaxmesh.errors import ParseError
from jaxmesh.tensor.serialization import read, write
from jaxmesh.tensor.types import ON_HOST


def test_an_abstract_mesh_and_damaged_bytes() -> None:
    abstract = jax.sharding.AbstractMesh((2, 4), ("y", "x"))
    assert read(write(abstract, ("x",), ON_HOST)) == (abstract, ("x",), ON_HOST)
    for damaged in (b"", b"\xff", b"[]", b"{}", b'{"axes": []}', write(abstract, ("x",), ON_HOST)[:-1]):
        with pytest.raises(ParseError, match="cannot be read"):
            read(damaged)
