"""Every rule that an op can break: the error's type, and both values in its message."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.dialects.perform import evaluate
from jaxmesh.dialects.ttir import OPS

MESH = {"y": 2, "x": 4}
POOL = {"kernel": 2, "stride": 1, "padding": 0}
CONV = {"stride": 1, "padding": 0, "dilation": 1}
GATHER = {
    "offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,), "index_vector_dim": 1,
    "slice_sizes": (1, 4),
}  # fmt: skip
DOT = {"batch_dims_lhs": (), "contract_dims_lhs": (1,), "batch_dims_rhs": (), "contract_dims_rhs": (0,)}
A2A = {"split_dim": 0, "concat_dim": 1, "split_count": 4, "replica_groups": [[0, 1, 2, 3], [4, 5, 6, 7]]}
CONVOLUTION = {
    "window_strides": (1, 1), "padding": (0, 0, 0, 0), "input_dilation": (1, 1), "weight_dilation": (1, 1),
    "window_reversal": (False, False),
    "convolution_layout": {
        "input_batch": 0, "input_feature": 1, "input_spatial_dimensions": [2, 3],
        "kernel_output_feature": 0, "kernel_input_feature": 1, "kernel_spatial_dimensions": [2, 3],
        "output_batch": 0, "output_feature": 1, "output_spatial_dimensions": [2, 3],
    },
}  # fmt: skip


def struct(spec: str) -> jax.ShapeDtypeStruct:
    """A type from `f32 2 3`."""
    kind, *shape = spec.split()
    kinds = {"f32": np.float32, "bf16": jnp.bfloat16, "i32": np.int32, "u32": np.uint32, "i1": np.bool_, "i8": np.int8}
    return jax.ShapeDtypeStruct(tuple(map(int, shape)), kinds[kind])


def run(row: str, operands: list[str], attributes: dict[str, Any], results: list[str]) -> list[Any]:
    made: list[Any] = []

    def f(*xs: Any) -> Any:
        made.extend(evaluate(OPS[row].in_form_of(attributes, 0), xs, attributes, [struct(r) for r in results], MESH))
        return jnp.zeros(())

    mesh = AbstractMesh(tuple(MESH.values()), tuple(MESH))
    mapped = jax.shard_map(f, mesh=mesh, in_specs=P(), out_specs=P())
    jax.make_jaxpr(mapped)(*[struct(o) for o in operands])
    return [struct_of(y) for y in made]


def struct_of(y: Any) -> tuple[tuple[int, ...], str]:
    return y.shape, str(y.dtype)


X, M = "f32 2 3", "f32 2 3 4"
IMAGE = "f32 1 4 4 2"
ERRORS: list[tuple[str, list[str], dict[str, Any], str, list[str]]] = [
    # table: counts, attributes, declared types
    ("add", [X], {}, X, ["add takes 2 operands", "got 1"]),
    ("concat", [], {"dim": 0}, X, ["at least 1 operands", "got 0"]),
    ("linear", [X], {}, X, ["takes 2 to 3 operands", "got 1"]),
    ("reshape", [X], {"shap": [6]}, "f32 6", ["no attribute 'shap'", "attributes are: shape"]),
    ("add", [X, X], {"dim": 6}, X, ["no attribute 'dim'", "it has no attributes"]),
    ("reshape", [X], {}, "f32 6", ["needs the attribute 'shape' (ints)", "missing"]),
    ("reshape", [X], {"shape": [6.0]}, "f32 6", ["'shape' is of kind ints", "[6.0]"]),
    ("reshape", [X], {"shape": [True, 6]}, "f32 1 6", ["'shape' is of kind ints", "[True, 6]"]),
    ("concat", [X], {"dim": True}, X, ["'dim' is of kind int", "True"]),
    ("sum", [X], {"keep_dim": 1}, X, ["'keep_dim' is of kind bool", "got 1"]),
    ("leaky_relu", [X], {"parameter": "a"}, X, ["'parameter' is of kind float", "'a'"]),
    ("clamp_scalar", [X], {"min": None, "max": 1}, X, ["'min' is of kind number", "None"]),
    ("all_reduce", [X], {"reduce_type": 1, "cluster_axis": 0}, X, ["'reduce_type' is of kind enum", "got 1"]),
    ("constant", [], {"value": [1]}, "f32 1", ["'value' is of kind array", "[1]"]),
    ("convolution", [IMAGE, IMAGE], CONVOLUTION | {"window_reversal": [0]}, X, ["of kind bools", "[0]"]),
    ("add", [X, X], {"operandSegmentSizes": [1]}, X, ["operandSegmentSizes [1]", "2 operands"]),
    ("add", [X, X], {}, "f32 3 2", ["result is float32[2, 3]", "declared type is float32[3, 2]"]),
    ("add", [X, X], {}, "bf16 2 3", ["result is float32[2, 3]", "declared type is bfloat16[2, 3]"]),
    ("exp", ["i32 3"], {}, "i32 3", ["result is float32[3]", "declared type is int32[3]"]),
    ("eq", [X, X], {}, "i1 2", ["result is bool[2, 3]", "declared type is bool[2]"]),
    # elementwise
    ("add", [X, "f32 2"], {}, X, ["[2, 3] and [2] do not broadcast"]),
    ("where", ["i1 4", X, X], {}, X, ["[4] and [2, 3] and [2, 3] do not broadcast"]),
    ("clamp_tensor", [X, "f32 4", X], {}, X, ["[2, 3] and [4] and [2, 3] do not broadcast"]),
    ("bitwise_and", [X, X], {}, X, ["bits of integers", "float32[2, 3]"]),
    ("logical_left_shift", ["i1 3", "i1 3"], {}, "i1 3", ["bits of integers", "bool[3]"]),
    ("gelu_backward", [X, X], {"approximate": "some"}, X, ["none or tanh", "some"]),
    ("neg", ["i1 3"], {}, "i1 3", ["ttir.neg of (bool[3]) is impossible", "bool"]),
    # products
    ("matmul", [X, X], {}, X, ["contracted dims differ: 3", "2 of float32[2, 3]"]),
    ("matmul", [X, X], {"transpose_a": True, "transpose_b": True}, X, ["contracted dims differ: 2", "3 of"]),
    ("matmul", ["f32", X], {}, X, ["scalar has no dim", "float32[]"]),
    ("matmul", ["f32 2 3 4", "f32 3 4 5"], {}, X, ["[2] and [3] do not broadcast"]),
    ("linear", [X, "f32 3 4", "f32 5"], {}, "f32 2 4", ["[2, 4] and [5] do not broadcast"]),
    ("dot_general", [X, X], DOT, X, ["contract dims differ in size: [3] and [2]"]),
    ("dot_general", [X, X], DOT | {"contract_dims_rhs": (2,)}, X, ["contract_dims_rhs = 2", "rank 2"]),
    ("dot_general", [X, X], DOT | {"contract_dims_rhs": ()}, X, ["contract_dims_rhs has 1 entries", "has 0"]),
    ("dot_general", [X, X], DOT | {"batch_dims_lhs": (1,), "batch_dims_rhs": (1,), "contract_dims_rhs": (1,)}, X,
     ["dims [1] of lhs are batch and contract dims"]),
    # reductions
    ("sum", [X], {"dim_arg": [2], "keep_dim": False}, X, ["dim_arg = 2", "rank 2; allowed: -2 to 1"]),
    ("mean", [X], {"dim_arg": [0, -2], "keep_dim": False}, X, ["[0, -2] names a dim twice", "rank 2"]),
    ("max", ["f32 0 3"], {"dim_arg": [0], "keep_dim": False}, "f32 3", ["max of (float32[0, 3]) is impossible"]),
    ("cumsum", [X], {"dim": -3}, X, ["dim = -3", "-2 to 1"]),
    ("softmax", ["f32"], {"dimension": 0}, "f32", ["dimension = 0", "none, a scalar has no dims"]),
    # shapes
    ("reshape", [X], {"shape": [4, 2]}, X, ["[4, 2] holds 8 elements", "float32[2, 3] holds 6"]),
    ("reshape", [X], {"shape": [-2, -3]}, X, ["[-2, -3]", "float32[2, 3]"]),
    ("permute", [X], {"permutation": [0]}, X, ["permutation has 2 entries", "[0] has 1"]),
    ("permute", [X], {"permutation": [0, 0]}, X, ["[0, 0] names a dim twice", "rank 2"]),
    ("permute", [X], {"permutation": [0, -1]}, X, ["[0, -1] names dim -1", "allowed: 0 to 1"]),
    ("transpose", [X], {"dim0": 0, "dim1": 5}, X, ["dim1 = 5", "-2 to 1"]),
    ("squeeze", [X], {"dim": 1}, X, ["dim 1 of float32[2, 3] has size 3, not 1"]),
    ("unsqueeze", [X], {"dim": 3}, X, ["dim = 3", "-3 to 2"]),
    ("broadcast", [X], {"broadcast_dimensions": [1, 2]}, X, ["size 3 and cannot be broadcast 2 times"]),
    ("broadcast", [X], {"broadcast_dimensions": [1]}, X, ["2 entries", "[1] has 1"]),
    ("repeat", [X], {"repeat_dimensions": [0, 1]}, X, ["[0, 1]", "below 1"]),
    ("repeat_interleave", [X], {"repeats": 0, "dim": 0}, X, ["repeats = 0", "below 1"]),
    ("reverse", [X], {"dimensions": [0, 0]}, X, ["[0, 0] names a dim twice"]),
    ("concat", [X, "f32 3 3"], {"dim": 1}, X, ["differ beside dim 1: float32[2, 3] and float32[3, 3]"]),
    ("concat", [X, "i32 2 3"], {"dim": 1}, X, ["float32[2, 3] and int32[2, 3]"]),
    ("slice_static", [X], {"begins": [0], "ends": [1, 1], "step": [1, 1]}, X, ["begins has 2 entries", "[0] has 1"]),
    ("slice_static", ["f32 8"], {"begins": [0], "ends": [9], "step": [1]}, X, ["end 9", "size 8"]),
    ("slice_static", ["f32 8"], {"begins": [0], "ends": [4], "step": [0]}, X, ["a step of 0", "begin 0, end 4"]),
    ("slice_static", ["f32 8"], {"begins": [4], "ends": [2], "step": [1]}, X, ["before the begin", "begin 4, end 2"]),
    ("slice_static", ["f32 8"], {"begins": [8], "ends": [2], "step": [-1]}, X, ["out of range", "begin 8", "size 8"]),
    ("index", [X], {"dim": 2, "begin": 0, "end": 1, "step": 1}, X, ["dim = 2", "-2 to 1"]),
    ("index_select", ["f32 8"], {"dim": 0, "begin": 9, "length": 1}, X, ["begin 9", "size 8"]),
    ("index_select", ["f32 8"], {"dim": 0, "begin": 3, "length": 3, "stride": 3}, X, ["ends at 9", "size 8"]),
    ("slice_dynamic", [X, "i32 1", "i32 2"], {}, X, ["begins has 2 entries", "int32[1]"]),
    ("slice_dynamic", [X, "i32 2", "i32 2"], {}, "f32 3 3", ["[3, 3]", "span more than float32[2, 3]"]),
    ("slice_dynamic", [X, "i32 2", "i32 2"], {}, "f32 3", ["declared shape has 2 entries", "[3] has 1"]),
    ("slice_dynamic", [X, "i32 2", "i32 2"], {"step": [0, 1]}, X, ["step = [0, 1]", "below 1"]),
    ("pad", [X], {"padding": [0, 0], "value": 0}, X, ["padding has 4 entries", "[0, 0] has 2"]),
    ("pad", [X], {"padding": [-2, -1, 0, 0], "value": 0}, X, ["-2 and -1", "size 2"]),
    ("concatenate_heads", [X], {}, X, ["has rank 4", "float32[2, 3] has rank 2"]),
    # creation
    ("zeros", [], {"shape": [3]}, X, ["shape = [3]", "float32[2, 3]"]),
    ("full", [], {"shape": [2, 3], "fill_value": 2**40}, "i32 2 3", ["fill_value = 1099511627776", "int32"]),
    ("full", [], {"fill_value": math.inf}, "i8 2 3", ["fill_value = inf", "int8", "-128 to 127"]),
    ("pad", [X.replace("f32", "i8")], {"padding": [0, 1, 0, 0], "value": 300}, X, ["value = 300", "int8"]),
    ("constant", [], {"value": np.zeros((3, 2))}, X, ["shape [3, 2]", "float32[2, 3]"]),
    ("constant", [], {"value": np.array([1, 2**40])}, "i32 2", ["1099511627776", "int32"]),
    ("arange", [], {"start": 0, "end": 5, "step": 2}, "i32 4", ["give 3 numbers", "int32[4] has 4"]),
    ("arange", [], {"start": 0, "end": 5, "step": 0}, "i32 4", ["a step of 0", "0 to 5"]),
    ("arange", [], {"start": 0, "end": 4, "step": 1, "arange_dimension": 1}, "i32 4",
     ["arange_dimension = 1", "rank 1"]),
    ("rand", [], {"size": [3]}, X, ["size = [3]", "float32[2, 3]"]),
    ("rand", [], {"low": 2.0, "high": 1.0}, X, ["low = 2.0", "high = 1.0"]),
    ("get_dimension_size", [X], {"dimension": 0}, "i32 2", ["one number", "int32[2]"]),
    # indexing
    ("gather", [X, "i32 3"], GATHER, X, ["slice_sizes = [1, 4]: dim 1", "has 3"]),
    ("gather", [X, "i32 3"], GATHER | {"slice_sizes": (1,)}, X, ["slice_sizes has 2 entries", "[1] has 1"]),
    ("gather", [X, "i32 3 2"], GATHER, X, ["start_index_map has 2 entries", "has 1"]),
    ("gather", [X, "i32 3"], GATHER | {"index_vector_dim": 2}, X, ["index_vector_dim = 2", "rank 1"]),
    ("gather", [X, "f32 3"], GATHER | {"slice_sizes": (1, 3)}, X, ["integers", "float32[3, 1]"]),
    ("gather", [X, "i32 3"], GATHER | {"slice_sizes": (2, 3)}, X, ["dim 0 is collapsed", "size 2"]),
    ("scatter", [X, "i32 1", "f32 1"], {"dim": 0}, X, ["index has rank 2", "int32[1] has rank 1"]),
    ("scatter", [X, "i32 1 3", "f32 1 2"], {"dim": 0}, X, ["source has the shape [1, 3]", "float32[1, 2]"]),
    ("scatter", [X, "i32 1 4", "f32 1 4"], {"dim": 0}, X, ["dim 1", "int32[1, 4]", "float32[2, 3]"]),
    ("scatter", [X, "f32 1 3", "f32 1 3"], {"dim": 0}, X, ["integers", "float32[1, 3]"]),
    ("scatter", [X, "i32 1 3", "i32 1 3"], {"dim": 0}, X, ["float32[2, 3]", "int32[1, 3]"]),
    ("scatter", [X, "i32 1 3", "f32 1 3"], {"dim": 0, "scatter_reduce_type": "var"}, X, ["'var'", "invalid, sum"]),
    ("embedding", ["i32 2", M], {}, X, ["matrix", "float32[2, 3, 4]"]),
    ("embedding", ["i32 2", "f32 0 3"], {}, X, ["float32[0, 3]", "no row"]),
    ("embedding_backward", ["i32 2", X, "f32 3 3"], {}, X, ["row of 3 per id of int32[2]", "float32[3, 3]"]),
    ("fill_cache", [M, M], {}, M, ["has rank 4", "rank 3"]),
    ("fill_cache", ["f32 2 2 4 4", "f32 2 2 5 4"], {}, X, ["length 5", "cache's 4"]),
    ("fill_cache", ["f32 2 2 4 4", "f32 2 3 4 4"], {}, X, ["float32[2, 2, 4, 4]", "float32[2, 3, 4, 4]"]),
    ("fill_cache", ["f32 2 2 4 4", "f32 2 2 4 4"], {"batch_offset": 1}, X, ["1 to 3", "cache's 2"]),
    ("update_cache", ["f32 2 2 4 4", "f32 1 2 1 4", "i32 2"], {}, X, ["one number", "int32[2]"]),
    ("update_cache", ["f32 2 2 4 4", "f32 2 2 1 4", "i32 1"], {}, X, ["(1, heads, batch, head size)", "has 2"]),
    ("update_cache", ["f32 2 2 4 4", "f32 1 2 3 4", "i32 1"], {}, X, ["batch 0 to 3", "outside the cache's 2"]),
    ("gather", ["f32", "i32"], {"dim": 0}, X, ["a scalar has no dim", "float32[]"]),
    ("gather", [X, "i32 3"], {"dim": 0}, X, ["index has rank 2", "int32[3]"]),
    ("gather", [X, "f32 1 3"], {"dim": 0}, X, ["integers", "float32[1, 3]"]),
    ("gather", [X, "i32 1 4"], {"dim": 0}, X, ["dim 1", "int32[1, 4]", "float32[2, 3]"]),
    ("gather", [X, "i32 1 3"], {"dim": 2}, X, ["dim = 2", "-2 to 1"]),
    ("gather", ["f32 0 3", "i32 1 3"], {"dim": 0}, X, ["dim 0", "is empty", "int32[1, 3]"]),
    # norms, attention
    ("layer_norm", [X], {"normalized_shape": [2]}, X, ["normalized_shape = [2]", "float32[2, 3]"]),
    ("rms_norm", [X, "f32 2"], {"normalized_shape": [3]}, X, ["shape [3]", "float32[2]"]),
    ("layer_norm", [X, X], {"normalized_shape": [3], "operandSegmentSizes": [2, 0, 0]}, X,
     ["[2, 0, 0]", "weight, bias"]),
    ("batch_norm_inference", [X, "f32 2", "f32 3", "f32 3", "f32 3"], {}, X, ["shape [3]", "float32[2]"]),
    ("distributed_rms_norm", [X, "f32 6"], {"cluster_axis": 0}, X, ["weight or bias has 3", "float32[6]"]),
    ("distributed_layer_norm", [X, "f32 3", "f32 3", "f32 3"], {"cluster_axis": 0}, X, ["shape [2, 3]", "float32[3]"]),
    ("distributed_layer_norm", ["f32"], {"cluster_axis": 0}, X, ["scalar", "float32[]"]),
    ("scaled_dot_product_attention", [IMAGE, IMAGE, IMAGE, "f32 4 4"], {}, X, ["attention_mask", "is_causal = True"]),
    ("scaled_dot_product_attention", [IMAGE, IMAGE, IMAGE, "f32 5 1 1 1"], {"is_causal": False}, X,
     ["[1, 4, 4, 4]", "float32[5, 1, 1, 1]"]),
    ("scaled_dot_product_attention", [IMAGE, "f32 1 3 4 2", "f32 1 3 4 2"], {}, X, ["4 heads", "the 3 heads"]),
    ("scaled_dot_product_attention", [IMAGE, "f32 1 4 4 3", "f32 1 4 4 3"], {}, X, ["float32[1, 4, 4, 2]", "4, 4, 3]"]),
    ("scaled_dot_product_attention", [IMAGE, IMAGE, "f32 1 4 4 3"], {}, X, ["float32[1, 4, 4, 3]", "[1, 4, 4, 2]"]),
    ("rotary_embedding", [X, X, X], {}, X, ["last dim is even", "float32[2, 3]"]),
    ("rotary_embedding", ["f32 2 4", "f32 4", "f32 3 2 4"], {}, X, ["sin broadcasts to [2, 4]", "float32[3, 2, 4]"]),
    # windows
    ("conv2d", [IMAGE, "f32 3 3 2 2"], CONV, X, ["2 channels", "the weight's 3"]),
    ("conv2d", [IMAGE, "f32 3 1 2 2"], CONV | {"groups": 2}, X, ["3 output channels", "groups = 2"]),
    ("conv2d", [IMAGE, "f32 3 2 2 2"], CONV | {"stride": [1, 1, 1]}, X, ["1 or 2 entries", "[1, 1, 1]"]),
    ("conv2d", [IMAGE, "f32 3 2 2 2"], CONV | {"stride": 0}, X, ["at least 1", "[0]"]),
    ("conv2d", [IMAGE, "f32 3 2 2 2"], CONV | {"padding": [1.0, 1]}, X, ["row of integers", "(1.0, 1)"]),
    ("conv2d", [IMAGE, "f32 3 2 2 2"], CONV | {"padding": -1}, X, ["at least 0", "[-1]"]),
    ("conv2d", [IMAGE, "f32 3 2 2 2"], CONV | {"height_dim": 2}, X, ["[0, 3, 2, 2] names a dim twice"]),
    ("conv2d", [IMAGE, "f32 3 2 2 2", "f32 4"], CONV, X, ["[1, 3, 3, 3] and [4] do not broadcast"]),
    ("conv_transpose2d", [IMAGE, "f32 3 2 2 2"], CONV, X, ["2 channels", "the weight's 3"]),
    ("conv_transpose2d", [IMAGE, "f32 2 2 2 2"], CONV | {"groups": 0}, X, ["2 channels", "groups = 0"]),
    ("conv_transpose2d", [X, "f32 2 2 2 2"], CONV, X, ["rank 4", "float32[2, 3] has rank 2"]),
    ("convolution", [IMAGE, "f32 3 4 2 2"], CONVOLUTION | {"convolution_layout": {}}, X, ["needs input_batch", "{}"]),
    ("convolution", [IMAGE, "f32 3 4 2 2"], CONVOLUTION | {"convolution_layout": "?"}, X, ["input_batch", "'?'"]),
    ("convolution", [IMAGE, "f32 3 4 2 2"], CONVOLUTION | {"padding": (0, 0)}, X,
     ["padding has 4 entries", "[0, 0] has 2"]),
    ("convolution", [IMAGE, "f32 3 3 2 2"], CONVOLUTION, X, ["convolution of (float32[1, 4, 4, 2]", "3, 3, 2, 2]"]),
    ("max_pool2d", [IMAGE], POOL | {"kernel": 5}, X, ["window of 5", "float32[1, 4, 4, 2]"]),
    ("avg_pool2d", [X], POOL, X, ["rank 4", "float32[2, 3] has rank 2"]),
    ("upsample2d", [IMAGE], {"scale_factor": 2, "mode": "bicubic"}, X, ["'bicubic'", "nearest"]),
    # sharding and communication
    ("mesh_partition", [X], {"dim": 1, "cluster_axis": 0}, X, ["dim 1 of size 3", "by 2", "'y'"]),
    ("mesh_partition", ["f32 12"], {"dim": 0}, X, ["dim 0 of size 12", "by 8", "'y', 'x'"]),
    ("all_gather", [X], {"all_gather_dim": 0, "cluster_axis": 2}, X, ["cluster_axis = 2", "y=2, x=4", "0 to 1"]),
    ("all_gather", [X], {"all_gather_dim": 2, "cluster_axis": 0}, X, ["all_gather_dim = 2", "-2 to 1"]),
    ("all_reduce", [X], {"reduce_type": "sum", "cluster_axis": -1}, X, ["cluster_axis = -1", "0 to 1"]),
    ("all_reduce", [X], {"reduce_type": "std", "cluster_axis": 0}, X, ["'std'", "sum, mean, max, min, prod"]),
    ("reduce_scatter", ["f32 6"], {"reduce_type": "sum", "scatter_dim": 0, "cluster_axis": 1}, X,
     ["dim 0 of size 6", "by 4", "'x'"]),
    ("collective_permute", [X], {"source_target_pairs": [[0, 8]]}, X, ["device 8", "0 to 7"]),
    ("collective_permute", [X], {"source_target_pairs": [[0, 1], [0, 2]]}, X, ["sources", "device 0 twice", "[0, 0]"]),
    ("collective_permute", [X], {"source_target_pairs": [[0, 1], [2, 1]]}, X, ["targets", "device 1 twice", "[1, 1]"]),
    ("collective_permute", [X], {"source_target_pairs": [[0, 1, 2]]}, X, ["2 entries", "got 3"]),
    ("collective_permute", [X], {"source_target_pairs": [0, 1]}, X, ["table of device ids", "(0, 1)"]),
    ("collective_permute", [X], {"source_target_pairs": np.zeros(3)}, X, ["table of device ids", "0."]),
    ("collective_broadcast", [X], {"replica_groups": [[0, 1], [2]]}, X, ["different lengths: [1, 2]"]),
    ("collective_broadcast", [X], {"replica_groups": [[0, 1], [1, 2]]}, X, ["device 1 twice", "[0, 1, 1, 2]"]),
    ("collective_broadcast", [X], {"replica_groups": [[-1, 1]]}, X, ["device -1", "0 to 7"]),
    ("collective_broadcast", [X], {"replica_groups": []}, X, ["empty", "[]"]),
    ("all_to_all", ["f32 8 8"], A2A | {"split_count": 2}, X, ["split_count = 2", "4 devices"]),
    ("all_to_all", ["f32 6 8"], A2A, X, ["dim 0 of size 6", "by 4", "split_count"]),
    ("all_to_all", ["f32 8 8"], A2A | {"replica_groups": [[0, 1, 2, 3]]}, X, ["name 4 devices", "has 8"]),
    ("all_to_all", ["f32 8 8"], A2A | {"concat_dim": 2}, X, ["concat_dim = 2", "-2 to 1"]),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(ERRORS)), ids=lambda i: f"{i}-{ERRORS[i][0]}")
def test_errors_name_the_rule_and_the_values(case: int) -> None:
    row, operands, attributes, result, parts = ERRORS[case]
    with pytest.raises(jm.VerifyError) as caught:
        run(row, operands, attributes, [result])
    for part in (f"ttir.{row}", *parts):
        assert part in str(caught.value)


def test_results_are_counted() -> None:
    with pytest.raises(jm.VerifyError, match=r"ttir\.sort takes 2 results, got 1"):
        run("sort", [X], {}, [X])
    with pytest.raises(jm.VerifyError, match=r"ttir\.topk: k = 4 is not in 1 to 3, the size of dim 1"):
        run("topk", [X], {"k": 4}, [X, "i32 2 4"])
    with pytest.raises(jm.VerifyError, match=r"has rank 3, but float32\[2, 3\] has rank 2"):
        run("split_query_key_value_and_split_heads", [X], {"num_heads": 1}, [X, X, X])
    with pytest.raises(jm.VerifyError, match=r"hidden size 3 of float32\[2, 2, 3\] does not divide by 6 heads"):
        run("split_query_key_value_and_split_heads", ["f32 2 2 3"], {"num_heads": 2}, [X, X, X])
    with pytest.raises(jm.VerifyError, match=r"shape \[2, 2, 8\], but got float32\[2, 2, 6\]"):
        run("split_query_key_value_and_split_heads", ["f32 2 2 8", "f32 2 2 6"], {"num_heads": 4, "num_kv_heads": 2},
            [X, X, X])  # fmt: skip


def test_errors_of_jaxmesh_pass() -> None:
    attributes = {
        "shard_type": "devices",
        "shard_direction": "shard_to_full",
        "shard_shape": [2],
        "shard_dims": [0, -1],
    }

    def forgotten(x: Any) -> Any:
        x = jm.full_to_shard(x, P(("y", "x")))
        return evaluate(OPS["mesh_shard"], [x], attributes, [struct("f32 2")], MESH)[0]

    jitted = jm.jit(forgotten, mesh=AbstractMesh((2, 4), ("y", "x")))
    with pytest.raises(jm.ReplicationError, match="still varies over it"):
        jitted.trace(np.zeros(8, np.float32))
    with pytest.raises(jm.UnsupportedShardTypeError, match="maximal"):
        run("mesh_shard", [X], attributes | {"shard_type": "maximal"}, [X])
    with pytest.raises(jm.ArgumentTypeError, match="'sideways' is no ShardDirection"):
        run("mesh_shard", [X], attributes | {"shard_direction": "sideways"}, [X])


def test_what_a_dialect_adds_is_ignored() -> None:
    assert run("exp", [X], {"ttcore.note": 1, "resultSegmentSizes": [1]}, [X]) == [((2, 3), "float32")]
    assert run("typecast", [X], {}, ["i8 2 3"]) == [((2, 3), "int8")]


def test_a_wide_integer_is_held_as_jax_holds_it() -> None:
    wide = jax.ShapeDtypeStruct((2,), np.int64)

    def f() -> Any:
        (y,) = evaluate(OPS["constant"], [], {"value": np.array([1, 2], np.int64)}, [wide], MESH)
        (z,) = evaluate(OPS["typecast"], [y], {}, [wide], MESH)
        (w,) = evaluate(OPS["argmax"], [y], {}, [jax.ShapeDtypeStruct((), np.int64)], MESH)
        return z + w

    mesh = AbstractMesh((2, 4), ("y", "x"))
    (out,) = jax.make_jaxpr(jax.shard_map(f, mesh=mesh, in_specs=(), out_specs=P()))().out_avals
    assert out.dtype == np.int32
    assert math.prod(out.shape) == 2
