"""The calls of operations without a meaning, as tt-mlir 19c86fca prints them in Python and C++.

From lib/Conversion/TTNNToEmitPy/TTNNToEmitPy.cpp and lib/Conversion/TTNNToEmitC/TTNNToEmitC.cpp. No text that runs on
the emulation has them: a program with such an operation is refused before it is executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from jaxmesh.dialects.ttnn.op import (
    COMPUTE,
    DEVICE,
    DTYPE,
    MEMORY,
    NO_CALL,
    Param,
    Signature,
    attribute,
    operand,
    positional,
    text,
    unset,
)


class PrintedCalls(NamedTuple):
    """The Python call and the C++ call of an operation, and what the C++ function returns, as in `TtnnOp`."""

    python: Signature = NO_CALL
    cpp: Signature = NO_CALL
    cpp_results: Literal["vector", "tuple", "optionals"] = "vector"


CALLS: dict[str, PrintedCalls] = {}
"""By full name."""

_RESULTS: Mapping[str, Literal["tuple", "optionals"]] = {
    "sdpa_bw": "tuple",
    "sdpa_fw": "optionals",
    "nlp_create_qkv_heads_decode": "tuple",
}


def _call(name: str, python: Sequence[Param], cpp: Sequence[Param], callee: str = "", cpp_callee: str = "") -> None:
    dotted = callee or f"ttnn.{name}"
    other = (cpp_callee or dotted).replace(".", "::")
    signatures = Signature(dotted, tuple(python)), Signature(other, positional(*cpp))
    CALLS[f"ttnn.{name}"] = PrintedCalls(*signatures, _RESULTS.get(name, "vector"))


def _in(number: int, name: str = "") -> Param:
    return operand(name, number, keyword=bool(name), default=None)


def _at(name: str, key: str = "", form: str = "value") -> Param:
    return attribute(name, key or name, keyword=True, form=form)


def _of(name: str, form: str = "value") -> Param:
    return attribute(name, form=form)


def _is(printed: str, name: str = "") -> Param:
    return text(name, printed, keyword=bool(name))


_NONE = unset("")
_QKV = (_in(0), _in(1), _in(2))
_CAUSAL, _SCALE = _at("is_causal"), _at("scale", form="float")
_PROGRAM = unset("program_config")
_ATTENTION = attribute("program_config", keyword=True, form="config:ttnn.SDPAProgramConfig", default=None)
_CPP_ATTENTION = _of("program_config", "config:::ttnn::operations::transformer::SDPAProgramConfig")
_MASK = "enum:::ttml::metal::AttentionMaskType"

_call("clamp_tensor", [*_QKV, MEMORY], [*_QKV, MEMORY], "ttnn.clamp")
_call("cumprod", [_in(0), _of("dim"), DTYPE, MEMORY], [_in(0), _of("dim"), DTYPE, _is("false"), _NONE, MEMORY])
_call("pow_scalar", [_in(0), _of("rhs"), MEMORY], [_in(0), _of("rhs"), MEMORY], "ttnn.pow")
_call(
    "dropout",
    [],
    [_in(0), _of("prob", "float"), _of("scale", "float"), _of("seed"), _of("use_per_device_seed")],
    cpp_callee="ttnn.experimental.dropout",
)
_call(
    "batch_norm_training",
    [
        _in(0), _in(1, "running_mean"), _in(2, "running_var"), _is("True", "training"), _at("eps", "epsilon", "float"),
        _at("momentum", form="float"), _in(3, "weight"), _in(4, "bias"), MEMORY, COMPUTE,
    ],
    [
        _in(0), _in(1), _in(2), _is("true"), _of("epsilon", "float"), _of("momentum", "float"), _in(3), _in(4), _NONE,
        MEMORY, COMPUTE,
    ],
    "ttnn.batch_norm",
)  # fmt: skip
_call(
    "group_norm",
    [
        _in(0), _in(1, "input_mask"), _in(2, "weight"), _in(3, "bias"), _at("num_groups"), _at("epsilon", form="float"),
        MEMORY, unset("core_grid"), _is("False", "inplace"), unset("num_out_blocks"),
    ],
    [
        _in(0), _of("num_groups"), _of("epsilon", "float"), _in(1), _in(2), _in(3), _NONE, MEMORY, *[_NONE] * 5,
    ],
)  # fmt: skip
_WINDOW_1D = ("in_channels", "out_channels", "batch_size", "input_length", "kernel_size", "stride")
_call(
    "conv1d",
    [
        _in(0, "input_tensor"), _in(1, "weight_tensor"), DEVICE, *map(_at, _WINDOW_1D), _at("padding"), _at("dilation"),
        _at("groups"), DTYPE, _in(2, "bias_tensor"), unset("conv_config"), unset("compute_config"), MEMORY,
        unset("slice_config"),
    ],
    [
        _in(0), _in(1), DEVICE, *map(_of, _WINDOW_1D), _of("padding", "uint32s"), _of("dilation"), _of("groups"), DTYPE,
        _in(2), _NONE, _NONE, MEMORY, _NONE, _is("false"), _is("false"),
    ],
)  # fmt: skip
_WINDOW_3D = ("kernel_size", "stride", "padding")
_call(
    "conv3d",
    [
        _in(0, "input_tensor"), _in(1, "weight_tensor"), DEVICE, _in(2, "bias_tensor"), unset("config"), DTYPE,
        _at("output_channels", "out_channels"), *map(_at, _WINDOW_3D), _is("[1, 1, 1]", "dilation"),
        _at("padding_mode"), _at("groups"), MEMORY, COMPUTE,
    ],
    [
        _in(0), _in(1), DEVICE, _in(2), _NONE, DTYPE, _of("out_channels"),
        *[_of(name, "uint32s") for name in _WINDOW_3D], _is("::std::array<uint32_t, 3>{1, 1, 1}"),
        _of("padding_mode"), _of("groups"), MEMORY, COMPUTE,
    ],
    "ttnn.experimental.conv3d",
)  # fmt: skip
_call(
    "prepare_conv3d_weights",
    [_in(0, "weight_tensor"), _at("groups"), _at("C_in_block", "c_in_block"), _at("alignment"), DEVICE],
    [_in(0), _of("groups"), _of("c_in_block"), _of("alignment"), DEVICE],
    "ttnn.experimental.prepare_conv3d_weights",
    "ttnn.operations.experimental.conv3d.prepare_conv3d_weights",
)
_SIZES = ("in_channels", "out_channels", "batch_size", "input_height", "input_width")
_WINDOW_2D = ("kernel_size", "stride", "padding", "dilation")


def _prepare(name: str, tensor: str, callee: str, *more: str) -> None:
    """Adds the call that brings weights or a bias of a convolution into the order of its kernel.

    `more` are the attributes of weights alone. Upstream's texts leave no config out: an unknown config is refused.
    """
    form, bias = more or ("", "")
    types = ("input_dtype", "output_dtype")
    _call(
        name,
        [
            _in(0, tensor), _at("input_memory_config", form="memory"),
            _at("input_layout", "input_tensor_layout", "enum:ttnn.Layout"), *([_at(form)] if form else []),
            *map(_at, (*_SIZES, *_WINDOW_2D)), *([_at(bias)] if bias else []), _at("groups"), DEVICE,
            *[_at(t, form="enum:ttnn.DataType") for t in types],
            _at("conv_config", "conv2d_config", "config:ttnn.Conv2dConfig"),
            _at("compute_config", form="config:ttnn.WormholeComputeKernelConfig"),
            _at("slice_config", "conv2d_slice_config", "config:ttnn.Conv2dSliceConfig"),
        ],
        [
            _in(0), _of("input_memory_config", "memory"), _of("input_tensor_layout", "enum:::ttnn::Layout"),
            *([_of(form)] if form else []), *map(_of, _SIZES), *[_of(n, "uint32s") for n in _WINDOW_2D],
            *([_of(bias)] if bias else []), _of("groups"), DEVICE, *[_of(t, "enum:::ttnn::DataType") for t in types],
            _of("conv2d_config", "config:::ttnn::Conv2dConfig"),
            _of("compute_config", "config:::ttnn::WormholeComputeKernelConfig"),
            _of("conv2d_slice_config", "config:::ttnn::Conv2dSliceConfig"),
        ],
        f"ttnn.{callee}",
        f"ttnn.operations.conv.conv2d.{callee}",
    )  # fmt: skip


_prepare("prepare_conv2d_weights", "weight_tensor", "prepare_conv_weights", "weights_format", "has_bias")
_prepare("prepare_conv2d_bias", "bias_tensor", "prepare_conv_bias")
_IMAGE = ("batch_size", "input_height", "input_width", "channels")
_POOL = ("kernel_size", "stride", "padding", "dilation")
_call(
    "max_pool2d_with_indices",
    [
        _in(0), *map(_of, _IMAGE), *map(_of, _POOL), _at("ceil_mode"), MEMORY, unset("applied_shard_scheme"),
        _at("reallocate_halo_output"), _is("True", "return_indices"),
        _at("config_tensor_in_dram", "config_tensors_in_dram"),
    ],
    [
        _in(0), *map(_of, _IMAGE), *[_of(name, "uint32s") for name in _POOL], _of("ceil_mode"), MEMORY, _NONE, _NONE,
        _is("false"), _of("reallocate_halo_output"), _is("true"), DTYPE, _is("::ttnn::Layout::ROW_MAJOR"),
        _of("config_tensors_in_dram"),
    ],
    "ttnn.max_pool2d",
)  # fmt: skip
_call(
    "paged_fill_cache",
    [_in(0), _in(1), _in(2), _in(3, "batch_idx_tensor")],
    [_in(0), _in(1), _in(2), _in(3), _is("0"), _NONE, _NONE],
    "ttnn.experimental.paged_fill_cache",
)
_call(
    "paged_update_cache",
    [_in(0), _in(1), _in(2, "update_idxs_tensor"), _at("share_cache"), _in(3, "page_table")],
    [_in(0), _in(1), _is("std::vector<uint32_t>()"), _in(2), _of("share_cache"), _in(3), _is("0"), _NONE, _NONE],
    "ttnn.experimental.paged_update_cache",
)
_call(
    "chunked_scaled_dot_product_attention",
    [*_QKV, _in(3, "page_table_tensor"), _in(4, "chunk_start_idx_tensor"), _SCALE, MEMORY, _ATTENTION],
    [*_QKV, _in(3), _in(4), _of("scale", "float"), MEMORY, _CPP_ATTENTION, _NONE],
    "ttnn.transformer.chunked_scaled_dot_product_attention",
)
_call(
    "paged_scaled_dot_product_attention_decode",
    [
        *_QKV, _in(3, "page_table_tensor"), _CAUSAL, _in(4, "attn_mask"), _in(5, "cur_pos_tensor"),
        _in(6, "attention_sink"), _SCALE, _at("sliding_window_size"), MEMORY, _ATTENTION,
    ],
    [
        *_QKV, _in(3), _of("is_causal"), _in(4), _in(5), _in(6), _of("scale", "float"), _of("sliding_window_size"),
        MEMORY, _CPP_ATTENTION, _NONE,
    ],
    "ttnn.transformer.paged_scaled_dot_product_attention_decode",
)  # fmt: skip
_call(
    "scaled_dot_product_attention_decode",
    [
        *_QKV, _CAUSAL, _in(3, "attn_mask"), _in(4, "cur_pos_tensor"), _in(5, "attention_sink"), _SCALE,
        _at("sliding_window_size"), MEMORY, _ATTENTION,
    ],
    [
        *_QKV, _of("is_causal"), _in(3), _is("std::vector<uint32_t>()"), _in(4), _in(5), _of("scale", "float"),
        _of("sliding_window_size"), MEMORY, _CPP_ATTENTION,
    ],
    "ttnn.transformer.scaled_dot_product_attention_decode",
)  # fmt: skip
_call(
    "sdpa_fw",
    [],
    [*_QKV, _of("mask_type", _MASK), _in(3), _of("dropout_probability", "float"), _of("return_intermediates")],
    cpp_callee="ttml.metal.sdpa_fw",
)
_call(
    "sdpa_bw",
    [],
    [*map(_in, range(6)), _of("mask_type", _MASK), _in(6), _of("dropout_probability", "float")],
    cpp_callee="ttml.metal.sdpa_bw",
)
_ROUNDING = "enum:::ttml::metal::StochasticRounding"
_RATES = ("lr", "beta1", "beta2", "beta1_pow", "beta2_pow", "epsilon", "weight_decay")
_call(
    "adamw",
    [],
    [*map(_in, range(5)), *[_of(n, "float") for n in _RATES], _of("stochastic_rounding", _ROUNDING)],
    cpp_callee="ttml.metal.adamw",
)
_call(
    "flash_mla_prefill",
    [
        _in(0), _in(1), Param("value", "operand_or_attribute", 2, "head_dim_v", default=None), _in(3, "attn_mask"),
        _CAUSAL, _SCALE, MEMORY,
    ],
    [],
    "ttnn.transformer.flash_mla_prefill",
)  # fmt: skip
_call(
    "indexer_score_dsa",
    [*_QKV, _at("chunk_start_idx"), _at("seq_shard_axes", "cluster_axis", "one")],
    [
        *_QKV, _of("chunk_start_idx"),
        _is("::ttnn::operations::experimental::indexer_score::IndexerScoreProgramConfig{}"), _NONE, _NONE, _NONE,
        _at("seq_shard_axes", "cluster_axis", "one"),
    ],
    "ttnn.experimental.indexer_score_dsa",
)  # fmt: skip
_call("topk_router_gpt", [], [*_QKV, _of("k"), _of("num_experts")], cpp_callee="ttnn.experimental.topk_router_gpt")
_call(
    "sampling",
    [*map(_in, range(5)), _at("seed")],
    [*map(_in, range(5)), _of("seed")],
)
_call(
    "nlp_concat_heads_decode",
    [_in(0), _at("num_heads"), MEMORY],
    [_in(0), _of("num_heads"), MEMORY],
    "ttnn.experimental.nlp_concat_heads_decode",
)
_HEADS = ("num_heads", "num_kv_heads", "overlap_qk_coregrid")
_call(
    "nlp_create_qkv_heads_decode",
    [_in(0), *map(_at, _HEADS), _in(1, "batch_offset"), _at("slice_size"), MEMORY],
    [_in(0), *map(_of, _HEADS), _in(1), _of("slice_size"), MEMORY],
    "ttnn.experimental.nlp_create_qkv_heads_decode",
    "ttnn.nlp_create_qkv_heads_decode_wrapper",
)
_EXPERTS = (_in(0, "input_tensor"), _in(1, "expert_indices_tensor"), _in(2, "expert_mapping_tensor"))
_call(
    "all_to_all_dispatch",
    [*_EXPERTS, _at("cluster_axis"), MEMORY],
    [*_QKV, _of("cluster_axis"), _NONE, _NONE, _NONE, MEMORY],
)
_call(
    "all_to_all_dispatch_metadata",
    [
        _in(0, "input_tensor"), _in(1, "expert_indices_tensor"), _in(2, "expert_scores_tensor"),
        _in(3, "expert_mapping_tensor"), _at("cluster_axis"),
    ],
    [*map(_in, range(4)), _of("cluster_axis"), _NONE, _NONE, _NONE],
    "ttnn.experimental.all_to_all_dispatch_metadata",
)  # fmt: skip
_call(
    "dump_tensor",
    [_in(0), _of("file_path", "path")],
    [_of("file_path", "path"), _in(0)],
    cpp_callee="::ttnn.dump_tensor_flatbuffer",
)
_LOADED = (_of("file_path", "path"), Param("layout", "layout"), Param("dtype", "dtype"), Param("device", "device"))
_call(
    "load_tensor",
    [*_LOADED, Param("memory_config", "memory_config")],
    [*_LOADED, MEMORY],
    "utils.load_tensor",
    "ttnn.loadTensor",
)
_call(
    "all_to_all_combine",
    [
        _in(0, "input_tensor"), _in(1, "expert_metadata_tensor"), _in(2, "expert_mapping_tensor"), _at("cluster_axis"),
        _at("output_shard_dim"), MEMORY,
    ],
    [
        _in(0), _in(2), _in(1), _is("false"), _NONE, _NONE, MEMORY, _of("cluster_axis"), _of("output_shard_dim"),
    ],
)  # fmt: skip
_call(
    "moe_expert_token_remap",
    [
        _in(0, "topk_tensor"), _in(1, "expert_mapping_tensor"), _in(2, "expert_metadata_tensor"), _at("reduction_size"),
        MEMORY,
    ],
    [*_QKV, MEMORY, _NONE, _NONE, _of("reduction_size")],
)  # fmt: skip
_SPARSE = ("nnz", "is_input_a_sparse", "is_input_b_sparse")
_call(
    "sparse_matmul",
    [
        _in(0, "input_tensor_a"),
        _in(1, "input_tensor_b"),
        _in(2, "sparsity"),
        _PROGRAM,
        *map(_at, _SPARSE),
        MEMORY,
        DTYPE,
    ],
    [*_QKV, _NONE, *map(_of, _SPARSE), MEMORY, DTYPE, COMPUTE],
)
