"""What a `shard_map` with `check_vma=False` claims: results are equal along every axis that their spec leaves out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxmesh.dialects.check_copies import check_copies
from jaxmesh.dialects.replication import Claim, Collector, users_line
from jaxmesh.jaxprs import compat

_jax: Any = jax


def claiming(f: Callable[..., Any], out_specs: Any, collector: Collector | None) -> Callable[..., Any]:
    """The function of the shards, its results checked for what their specs claim; to be mapped with the same specs."""

    @functools.wraps(f)
    def checked(*args: Any, **kwargs: Any) -> Any:
        out = f(*args, **kwargs)
        try:
            specs = jax.tree.broadcast(out_specs, out, is_leaf=_is_spec)
        except ValueError:
            # The specs do not fit the result; JAX says so in its own words.
            return out
        rows, tree = _jax.tree.flatten_with_path(out)
        leaves = _jax.tree.leaves(specs, is_leaf=_is_spec)
        name, line = getattr(f, "__name__", "the function"), users_line()
        made: list[Any] = []
        for number, ((path, leaf), spec) in enumerate(zip(rows, leaves, strict=True)):
            what = f"result{jax.tree_util.keystr(path)} of {name} (out_spec {spec}, check_vma=False)"
            made.append(_checked(leaf, spec, number, what, line, collector))
        return jax.tree.unflatten(tree, made)

    return checked


def _is_spec(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec)


def _checked(leaf: Any, spec: Any, number: int, what: str, line: str, collector: Collector | None) -> Any:
    if getattr(leaf, "dtype", None) is None or not isinstance(spec, PartitionSpec):
        return leaf
    mesh = jax.sharding.get_abstract_mesh()
    manual = {a: n for a, n in mesh.shape.items() if a in mesh.manual_axes}
    said = {a for entry in spec for a in ((entry,) if isinstance(entry, str) else entry or ())}
    said |= {*spec.unreduced, *spec.reduced}
    axes = tuple(a for a, n in manual.items() if a not in said and n > 1)
    if not axes:
        return leaf
    what = f"{what}, {compat.describe(jax.typeof(leaf))},"
    return check_copies(leaf, Claim(number, line, what, manual, axes, collector=collector))
