"""Programs on devices of the platform `tt`, in the Python of Tenstorrent's compiler: `python -m tests.generators.boards
FOLDER`.

No board is there: the plugin compiles for a described T3000, and results have no data. Each program leaves its
StableHLO text, and what the plugin made of it while it was called.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm

X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((16, 32)).astype(np.float32)
Options = Mapping[str, Any]


def _reverse(x: Any) -> Any:
    return jnp.flip(x, 0) * 2


def _twice(x: Any) -> Any:
    return x * 2


def _any(x: Any) -> Any:
    return (x > 1).any(0)


def _pad(x: Any) -> Any:
    return lax.pad(x, np.float32(1), ((-2, 2, 0), (0, 0, 0)))


def _random(x: Any) -> Any:
    return x + jax.random.normal(jax.random.key(0), x.shape)


def _product(x: Any, w: Any) -> Any:
    return x @ w


def _loss(w: Any, x: Any) -> Any:
    return (jnp.tanh(x @ w) ** 2).mean()


def _step(w: Any, x: Any) -> Any:
    return w - 0.1 * jax.grad(_loss)(w, x)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Options]] = {
    "reverse": (_reverse, (X,), {"in_shardings": P("y"), "out_shardings": P("y")}),
    "order": (_twice, (X,), {"in_shardings": P(("x", "y")), "out_shardings": P(("x", "y"))}),
    "any": (_any, (X,), {"in_shardings": P(("y", "x"))}),
    "pad": (_pad, (X,), {"in_shardings": P(None, "x")}),
    "random": (_random, (X,), {"in_shardings": P("y", "x")}),
    "product": (_product, (X, W), {"in_shardings": (P("y", "x"), P("x"))}),
    "training": (_step, (W, X), {"in_shardings": (P(None, "x"), P("y"))}),
}


def by_hand(x: Any) -> Any:
    return jm.shard_to_full(lax.psum(jm.full_to_shard(x, P("y", "x")), "y"), P(None, "x"))


def mapped(mesh: Any) -> Any:
    def local(x: Any) -> Any:
        return lax.psum(x, "y")

    return jm.shard_map(local, mesh=mesh, in_specs=P("y", "x"), out_specs=P(None, "x"))


def programs(mesh: Any) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], Options]]:
    """Returns the functions with their arguments and options."""
    return PROGRAMS | {"by hand": (by_hand, (X,), {}), "shard_map": (mapped(mesh), (X,), {})}


def describe(folder: Path) -> None:
    """Makes a description of a T3000 that this plugin takes, before it starts."""
    from jaxmesh.analysis.machines import machine_named
    from jaxmesh.analysis.upstream.descriptors import describe_system
    from jaxmesh.analysis.upstream.runner.__main__ import accept_description

    file = folder / "t3000.ttsys"
    file.write_bytes(describe_system(machine_named("t3000")))
    client: Any = jax.devices("tt")[0].client
    import jax_plugins.libtt as plugin  # pyright: ignore

    (library,) = Path(plugin.__file__).parent.glob("libtt.so")
    assert accept_description(client, str(library), file.read_bytes())


def run(folder: Path, mesh: Mesh) -> None:
    """Calls every program by every way that a user has, and keeps its texts."""
    for name, (fun, args, options) in programs(mesh).items():
        home = folder / name
        home.mkdir()
        call = jm.jit(fun, mesh=mesh, **options, compiler_options={"export_path": str(home)})
        lowered = call.lower(*args)
        (home / "sent.mlir").write_text(lowered.as_text("stablehlo"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            out = call(*args)
        dropped = [str(w.message) for w in caught if issubclass(w.category, jm.errors.DroppedShardingWarning)]
        assert len(dropped) == (name == "order"), dropped
        wanted = jm.jit(fun, mesh=mesh, **options).eval_shape(*args)
        assert (out.shape, out.dtype) == (wanted.shape, wanted.dtype)
        assert set(out.devices()) == set(mesh.devices.flat)
        again = lowered.compile()(*args)
        assert again.sharding.is_equivalent_to(out.sharding, out.ndim)
    tensors(mesh)
    donation(mesh)


def tensors(mesh: Mesh) -> None:
    """Passes a `MeshTensor` from one program to another."""
    made = jm.jit(lambda x: jm.full_to_shard(x, P("y", "x")), mesh=mesh)(X)
    assert isinstance(made, jm.MeshTensor)
    out = jm.jit(lambda t: jm.shard_to_full(t * 2, P("y", "x")), mesh=mesh)(made)
    assert out.sharding.is_equivalent_to(NamedSharding(mesh, P("y", "x")), 2)


def donation(mesh: Mesh) -> None:
    """Passes an array on the devices that may be given away, which JAX does not do on this platform."""
    given = jax.device_put(X, NamedSharding(mesh, P("y")))
    step = jm.jit(lambda x: x + 1, mesh=mesh, in_shardings=P("y"), donate_argnums=0)
    assert step(given).sharding.is_equivalent_to(given.sharding, 2)


if __name__ == "__main__":
    describe(Path(os.environ["TMPDIR"]))
    run(Path(sys.argv[1]), jm.make_mesh((2, 4), ("y", "x"), devices=jax.devices("tt")))
