"""Signatures and docstrings of the functions for the ops of TTNN."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from jaxmesh.dialects.ttnn.op import NEEDED, Param, TtnnOp

HOW = frozenset({"program_config", "conv_config", "num_links", "topology", "subdevice_id", "sub_core_grid"})
"""Arguments that change how an op is computed but not its value; they are printed as None."""

IGNORED = frozenset({
    "queue_id", "cq_id", "core_grid", "program_config", "compute_kernel_config", "sub_core_grids", "use_multicore",
    "use_legacy", "fast_and_approximate_mode",
})  # fmt: skip
"""Arguments that every op also takes and ignores: how and where on a device it is computed."""

IGNORED_BY_COLLECTIVES = frozenset({
    "mesh_device", "num_links", "topology", "subdevice_id", "num_workers_per_link", "num_buffers_per_channel",
    "chunks_per_sync", "barrier_semaphore", "multi_device_global_semaphore",
})  # fmt: skip
"""Arguments that collectives also take and ignore: how the devices communicate."""

ACTIVATIONS = frozenset({"relu", "relu6", "gelu", "silu", "sigmoid", "tanh", "exp", "mish", "sqrt", "neg"})
"""The ops that matmul and linear can apply to their result, as `activation` names them."""

OUTPUTS = ("output_tensor", "optional_output_tensor")
"""Arguments that every op of one result also takes: a tensor on the devices to write the result to."""

_P = inspect.Parameter
_DESCRIPTIONS: Mapping[str, str] = {
    "operand": "a tensor on the devices; or a number, where shapes broadcast",
    "operands": "a list of tensors on the devices",
    "memory_config": "the `MemoryConfig` of the result, kept and shown",
    "dtype": "the element type of the result; a `DataType`",
    "layout": "the `Layout` of the result, kept and shown",
    "shape": "the shape of the result",
    "device": "the mesh device to make it on; None makes a host tensor",
    "compute_config": "accepted and ignored",
    "text": "accepted and ignored",
    "none": "None; other values are not emulated",
}


def signature_of(params: Sequence[Param], *, by_place: bool) -> inspect.Signature:
    """Returns the signature of the function of a row; with `by_place` every argument may be positional."""
    kind, parameters, optional = _P.POSITIONAL_OR_KEYWORD, list[inspect.Parameter](), False
    for param in params:
        default = _P.empty if param.default is NEEDED else param.default
        optional = optional or default is not _P.empty
        # An optional argument that is printed with its name is keyword-only.
        if not by_place and param.keyword and optional and param.name != "cluster_axis":
            kind = _P.KEYWORD_ONLY
        if optional and kind is not _P.KEYWORD_ONLY and default is _P.empty:
            default = None
        parameters.append(_P(param.name, kind, default=default))
    return inspect.Signature(parameters)


def doc_of(entry: TtnnOp, signature: inspect.Signature) -> str:
    """Returns the docstring of the function of an op."""
    attributes = entry.definition.by_name

    def line(param: Param) -> str:
        if param.source == "none" and (param.name in HOW or param.name == "dtype"):
            return f"  {param.name}: {_DESCRIPTIONS['dtype' if param.name == 'dtype' else 'text']}."
        if param.source == "attribute":
            a = attributes[str(param.key)]
            return f"  {param.name}: {a.kind}, the attribute `{a.name}` of the op."
        return f"  {param.name}: {_DESCRIPTIONS[param.source]}."

    args = "\n".join(map(line, entry.python.params))
    count = "A tensor" if entry.definition.results == (1, 1) else "A list of tensors"
    return (
        f"`ttnn.{entry.definition.name}`, on every device.\n\nCalled as `{entry.python.callee}{signature}`.\n\n"
        f"Args:\n{args}\n\nReturns:\n  {count}, of local (per-device) shape.\n\n"
        "Raises:\n  ArgumentTypeError: wrong arguments.\n"
        "  ResidencyError: a tensor is in host memory, or deallocated.\n"
        "  MeshMismatchError: the tensors are on different meshes.\n  VerifyError: the op does not take these shapes, "
        "element types or numbers."
    )
