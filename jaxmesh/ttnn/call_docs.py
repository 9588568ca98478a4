"""Signatures and docstrings of the functions for the ops of TTNN."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from jaxmesh.dialects.ttnn.op import Param, TtnnOp

HOW = frozenset({
    "ag_global_semaphores", "applied_shard_scheme", "barrier_semaphores", "blocking", "chunks_per_sync",
    "compute_config", "compute_kernel_config", "config_tensor_in_dram", "conv_config", "core_grid", "correction",
    "cq_id", "deallocate_input", "disable_compensated_sum", "dram_slice_config", "enable_secondary_dm",
    "fast_and_approximate_mode", "global_cb", "intermediate_memory_config", "intermediate_tensor", "mesh_device",
    "mode", "momentum", "num_buffers_per_channel", "num_links", "num_workers_per_link", "numeric_stable",
    "output_layout", "pad_value", "padding_idx", "program_config", "queue_id", "reallocate_halo_output",
    "recip_tensor", "reshape_tile_mode", "rs_global_semaphores", "share_cache", "skip_padding_fill", "slice_config",
    "stable", "sub_core_grid", "sub_core_grids", "sub_device_id", "subdevice_id", "topology", "use_2d_core_grid",
    "use_falcon7b_backend", "use_l1_small_for_semaphores", "use_multicore", "variant", "vector_mode",
})  # fmt: skip
"""Arguments that change how and where an op is computed but not its value."""

JUDGED = ("fast_and_approximate_mode", "output_layout")
"""Those of them that decide whether the real function takes a call, or its result's layout."""

ACTIVATIONS = frozenset({"relu", "relu6", "gelu", "silu", "sigmoid", "tanh", "exp", "mish", "sqrt", "neg"})
"""The ops that matmul and linear can apply to their result, as `activation` names them."""

_DESCRIPTIONS: Mapping[str, str] = {
    "operand": "a tensor on the devices; or a number, where shapes broadcast",
    "operands": "a list of tensors on the devices",
    "operand_device": "accepted and ignored",
    "memory_config": "the `MemoryConfig` of the result, kept and shown",
    "dtype": "the element type of the result; a `DataType`",
    "layout": "the `Layout` of the result, kept and shown",
    "shape": "the shape of the result",
    "device": "the mesh device to make it on; None makes a host tensor",
    "compute_config": "accepted and ignored",
    "text": "accepted and ignored",
    "none": "None; other values are not emulated",
}


def doc_of(entry: TtnnOp, signature: inspect.Signature) -> str:
    """Returns the docstring of the function of an op."""
    attributes = entry.by_name

    def line(param: Param) -> str:
        if param.source == "none" and (param.name in HOW or param.name == "dtype"):
            return f"  {param.name}: {_DESCRIPTIONS['dtype' if param.name == 'dtype' else 'text']}."
        if param.source == "attribute":
            a = attributes[str(param.key)]
            return f"  {param.name}: {a.kind}, the attribute `{a.name}` of the op."
        return f"  {param.name}: {_DESCRIPTIONS[param.source]}."

    args = "\n".join(map(line, entry.python.params))
    count = "A tensor" if entry.results == (1, 1) else "A list of tensors"
    return (
        f"`ttnn.{entry.name}`, on every device.\n\nCalled as `{entry.python.callee}{signature}`.\n\n"
        f"Args:\n{args}\n\nReturns:\n  {count}, of local (per-device) shape.\n\n"
        "Raises:\n  ArgumentTypeError: wrong arguments.\n"
        "  ResidencyError: a tensor is in host memory, or deallocated.\n"
        "  MeshMismatchError: the tensors are on different meshes.\n  VerifyError: the op does not take these shapes, "
        "element types or numbers."
    )
