"""Ops of TTNN that create tensors; on the devices every device creates the same."""

from __future__ import annotations

from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttnn.forms import CREATED, FLOATS, WIDE, forms
from jaxmesh.dialects.ttnn.op import TtnnOps, ttir_meaning

OPS = TtnnOps()
_SHAPE = "shape: shape"

for _name in ("zeros", "ones"):
    OPS.define(
        _name,
        python="(shape=|shape, dtype=@, layout=@, device=@, memory_config=@)",
        respelled=_SHAPE,
        handles=(0, 1),
        accepts=CREATED,
    )
OPS.define(
    "full",
    python="(shape=|shape, fill_value=, dtype=@, layout=@, device=@, memory_config=@)",
    respelled=_SHAPE,
    handles=(0, 1),
    accepts=CREATED,
)
OPS.define(
    "empty",
    python="(shape:|shape, dtype:@, layout:@, device:@, memory_config:@)",
    cpp="(shape|shape, @dtype, @layout, @mesh_device, @memory_config)",
    like="zeros",
    respelled=_SHAPE,
    traits=[Trait.DECOMPOSED],
    handles=(1, 1),
    accepts=CREATED,
)

OPS.define(
    "constant",
    python="ttnn.Tensor(data:value|array, shape:@, data_type:@dtype, layout:@, device:@!, memory_config=@!)",
    cpp="ttnn::constant(value|array, @shape|shape, @dtype, @layout, @device, @memory_config)",
    handles=(0, 1),
    accepts=CREATED,
)

OPS.define(
    "arange",
    python="(start, end, step, dtype=@, device=@, layout=@, memory_config=@!)",
    cpp="(start, end, step, @dtype, @device, @memory_config, @layout)",
    omit=["arange_dimension"],
    meaning=lambda call: ttir_meaning(call, arange_dimension=0),
    handles=(0, 1),
    accepts=forms(WIDE, "either", gives="asked"),
)
OPS.define(
    "rand",
    python="(shape:size|shape, device=@, dtype=@, layout=@, low=|float, high=|float, seed=, memory_config=@)",
    respelled="size: shape",
    handles=(1, 1),
    accepts=forms(FLOATS, "either", gives="asked"),
)
