"""How JAX's primitives become rows of the table, one rule a primitive or family of them."""

from jaxmesh.ops.primitives import (
    bits as bits,
    calls as calls,
    convolutions as convolutions,
    dots as dots,
    elementwise as elementwise,
    gammas as gammas,
    indexing as indexing,
    loops as loops,
    orders as orders,
    pads as pads,
    picks as picks,
    ragged as ragged,
    random as random,
    reductions as reductions,
    scatters as scatters,
    shapes as shapes,
    special as special,
    windows as windows,
    words as words,
)

# When every rule is there.
for _name in random.MOVES:
    random.takes_keys(_name)
