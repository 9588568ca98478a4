"""`jaxmesh.visualize`: the placement of a tensor, or of every value of a program."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxmesh.drawing import placements
from jaxmesh.drawing.picture import Picture, TensorPicture
from jaxmesh.drawing.program_blocks import Cost, total
from jaxmesh.drawing.program_drawing import ProgramPicture, Timing
from jaxmesh.drawing.text_layout import duration
from jaxmesh.errors import (
    ArgumentTypeError,
    InexpressibleError,
    MeshError,
    MissingRuleError,
    ResidencyError,
    UnsupportedError,
)
from jaxmesh.jaxprs.source_locations import origin
from jaxmesh.runtime.progress import progress
from jaxmesh.sharding.mesh import as_mesh
from jaxmesh.stages.compiled import Compiled
from jaxmesh.stages.jit import JitFunction
from jaxmesh.stages.stages import Lowered, Stage
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.validate import as_bool, quote


def visualize(
    x: object,
    spec: PartitionSpec | None = None,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    dtype: object = None,
    whole: bool = False,
) -> Picture:
    """Draws the placement of data: the tensor in its pieces, and the grid of devices that hold them.

    A piece has one colour and one label on the tensor and on every device that holds it. In Jupyter the result draws
    itself; `print` it, or `.show()` it in a terminal; `.save("x.svg")`, `.html` and `.txt` write files.

    A long program is folded into its named scopes and source functions, equal blocks as one, with the values whose
    placement changes; a click opens a block. A lowered program stands beside a timeline of its `estimate`, on the
    smallest machine that has the mesh: for each row the time of compute, DRAM and links.

    Args:
      x: a `jax.Array`, or a `jax.ShapeDtypeStruct` with a sharding; a `MeshTensor`; a shape, with `spec` (an array or
        its type will do too); a mesh, or an open `ttnn.MeshDevice`; or a program: what `.trace(...)`, `.lower(...)` and
        `.compile()` of a `jaxmesh.jit` function give.
      spec: how the shape is cut, with `mesh`. A dim that does not divide is drawn in chunks of `ceil(size / count)`,
        with a note that no program has it so.
      mesh: a mesh with or without devices; by default the context's.
      dtype: of the shape; by default `float32`. Sizes are in bytes.
      whole: of a program, True to list every value.

    Raises:
      ArgumentTypeError: nothing of the above, or a value of a trace.
      ArgumentValueError: a shape with a negative size, or a sharding that does not fit it.
      SpecError: a spec that does not fit the mesh or the rank.
      MeshError: a spec without a mesh.
      ResidencyError: the tensor was deallocated (`DeletedError`: donated or deleted).
      UnsupportedError: more than 4,096 devices.

    >>> import jaxmesh as jm
    >>> from jax.sharding import PartitionSpec as P
    >>> print(jm.visualize((16, 8), P("y", None), mesh=jm.make_mesh((2, 4))))
    float32[16, 8]  P('y', None)
    mesh y=2, x=4: each device holds [8, 8], 256 B of 512 B; 2 pieces on 4 devices each
    dim 0: 16 in 2 pieces of 8 over y
    dim 1: 8, whole
    <BLANKLINE>
         x=0  x=1  x=2  x=3
    y=0  0 A  1 A  2 A  3 A
    y=1  4 B  5 B  6 B  7 B
    <BLANKLINE>
    A  [0:8, 0:8]   devices 0-3 (y=0)  256 B
    B  [8:16, 0:8]  devices 4-7 (y=1)  256 B
    """
    listed = as_bool("visualize", "whole", whole)
    if listed and not isinstance(x, (Stage, Compiled)):
        raise ArgumentTypeError(
            f"visualize takes whole=True with a program, to list all its values; got {quote(x)}; the "
            "picture of a tensor or a mesh is whole already. Leave it out."
        )
    if spec is not None:
        wanted = placements.as_spec(spec)
        shape, kind = placements.shape_and_dtype(x, dtype)
        return TensorPicture(placements.spec_placement(shape, kind, wanted, as_mesh(mesh)))
    if mesh is not None or dtype is not None:
        raise ArgumentTypeError(
            f"visualize takes mesh and dtype with a spec, to draw it on a shape; got {quote(x)} and no spec. Write "
            "jaxmesh.visualize(shape, P(...), mesh=mesh)."
        )
    if isinstance(x, (Stage, Compiled)):
        with progress("visualize"):
            values = x.values()
        return ProgramPicture(values, partial(_timing, x) if isinstance(x, Lowered) else None, listed)
    if isinstance(x, MeshTensor):
        return TensorPicture(placements.tensor_placement(_allocate(x)))
    if isinstance(x, (Mesh, AbstractMesh)):
        return TensorPicture(placements.mesh_placement(as_mesh(x)))
    if isinstance(x, (jax.Array, jax.ShapeDtypeStruct)):
        return TensorPicture(placements.array_placement(x))
    # A MeshDevice exists only if its module was loaded.
    from jaxmesh.tensor.device import MeshDevice

    if isinstance(x, MeshDevice):
        return TensorPicture(placements.mesh_placement(x.mesh))
    raise ArgumentTypeError(
        "visualize draws a jax.Array, a MeshTensor, a shape with a spec, a mesh, or a program that was traced, lowered "
        f"or compiled, got {quote(x)}{_remedy(x)}."
    )


def _remedy(x: object) -> str:
    if isinstance(x, JitFunction):
        return "; trace it for arguments first: jaxmesh.visualize(f.lower(*args))"
    if isinstance(x, NamedSharding):
        return "; say what it cuts with jaxmesh.visualize(shape, sharding.spec, mesh=sharding.mesh)"
    if isinstance(x, (np.ndarray, np.generic, tuple, list)):
        return "; it is on no device: say how it is cut with jaxmesh.visualize(x, P(...), mesh=mesh)"
    return ""


def _timing(lowered: Lowered) -> Timing:
    """Returns the least time of a program by the origins of its equations."""
    from jaxmesh.analysis.estimate import estimate_program

    try:
        estimate = estimate_program(lowered.marked_program(origin))
    except (InexpressibleError, MeshError, MissingRuleError, UnsupportedError) as error:
        return Timing(f"no timeline: {error}")
    costs: dict[str, list[Cost]] = {}
    for op in estimate.ops:
        bound = {part: op.seconds if part == op.bound_by else 0.0 for part in op.times}
        costs.setdefault(op.line, []).append(Cost(op.times, bound))
    shares = ", ".join(f"{part[0].lower()} {part} {share:.0%}" for part, share in estimate.shares.items())
    text = f"at least {duration(estimate.seconds)} on {estimate.machine.name}: {shares}"
    return Timing(text, {at: total(group) for at, group in costs.items()})


def _allocate(x: MeshTensor) -> MeshTensor:
    if not x.is_allocated():
        # Reading the array raises the error that names what took it.
        _ = x.data
        raise ResidencyError(f"{x!r} holds nothing any more; draw it before.")
    return x
