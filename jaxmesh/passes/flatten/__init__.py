"""How JAX's primitives become rows of the table, one rule a primitive or family of them."""

from jaxmesh.passes.flatten import (
    bit_reinterpretation as bit_reinterpretation,
    calls as calls,
    control_flow as control_flow,
    convolutions as convolutions,
    dot_general as dot_general,
    elementwise as elementwise,
    gamma as gamma,
    integer_bits as integer_bits,
    pad as pad,
    pool_gradients as pool_gradients,
    ragged_dot as ragged_dot,
    random as random,
    reduce_window as reduce_window,
    reductions as reductions,
    scatter as scatter,
    shapes as shapes,
    slicing_and_gather as slicing_and_gather,
    sort_and_scan as sort_and_scan,
    special_functions as special_functions,
)

# When every rule is there.
for _name in random.MOVES:
    random.takes_keys(_name)
