"""The calls of the sweep: each op of TTNN's table, printed for every element type and layout of its operands.

`python -m tests.generators.real_ttnn.sweep_calls > calls.jsonl`, then `sweep_worker.py calls.jsonl answers.jsonl` with
the real library's Python, then `python -m tests.generators.real_ttnn.sweep_report answers.jsonl`.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from jaxmesh.dialects import ttnn
from jaxmesh.dialects.program import Op, Program, Type, Value
from jaxmesh.emit.python.calls import arguments
from tests.generators.ttnn_cases import BF16, BOOL, F32, I32, Case, cases

DTYPES = tuple(np.dtype(t) for t in (ml_dtypes.bfloat16, "f4", "i4", "u4", "u2", "u1", "i1"))
MESH = (2, 4)
TIED: Mapping[str, Sequence[Sequence[int]]] = {
    "where": [[0], [1, 2]],
    "scatter": [[0, 2], [1]],
    "embedding_bw": [[0], [1, 2]],
    "update_cache": [[0, 1], [2]],
    "conv2d": [[0], [1, 2]],
    "conv_transpose2d": [[0], [1, 2]],
    "scaled_dot_product_attention": [[0, 1, 2], [3]],
}
"""Operands that get one element type and layout together, where that is not each for itself."""
TOGETHER = frozenset({
    "layer_norm", "rms_norm", "batch_norm_inference", "rotary_embedding", "concat", "linear",
    "split_query_key_value_and_split_heads",
})  # fmt: skip
"""Ops whose operands all get one element type and layout."""


def sizes_of(case: Case) -> list[tuple[int, ...] | None]:
    """The local shapes of the operands."""
    return [None if x is None else x.shape[1:] for x in case.operands]


def chosen() -> Iterator[Case]:
    """One occurrence for every op, set of attributes and ranks."""
    seen: set[Any] = set()
    for case in (*cases(MESH), *more()):
        shapes = tuple(None if s is None else len(s) for s in sizes_of(case))
        key = (case.op, repr(sorted(case.attributes.items())), shapes)
        if key not in seen and not any(s is not None and 0 in s for s in sizes_of(case)):
            seen.add(key)
            yield case


def more() -> Iterator[Case]:
    """Occurrences whose ranks, dims or attributes matter to the library alone."""

    def x(*shape: int, dtype: Any = F32) -> np.ndarray:
        return np.ones((8, *shape), dtype)

    for shape in ((), (5,), (4, 8), (2, 3, 5), (1, 2, 3, 5), (2, 1, 2, 3, 5)):
        for name in ("exp", "sum", "reshape", "permute", "repeat", "add", "concat", "all_reduce", "all_gather"):
            dims = tuple(range(len(shape)))
            attributes: dict[str, Any] = {
                "sum": {"dim_arg": dims[-1:] or None, "keep_dim": True},
                "reshape": {"shape": (*shape, 1)},
                "permute": {"permutation": dims[::-1]},
                "repeat": {"repeat_dims": (2,) * len(shape)},
                "concat": {"dim": 0},
                "all_reduce": {"cluster_axis": 1, "reduce_type": "sum"},
                "all_gather": {"all_gather_dim": max(len(shape) - 1, 0), "cluster_axis": 1},
            }.get(name, {})
            if shape or name in ("exp", "reshape", "add"):
                operands = (x(*shape),) * (2 if name in ("add", "concat") else 1)
                yield Case(name, operands, {k: v for k, v in attributes.items() if v is not None})
        for dim in range(len(shape)):
            yield Case("gather", (x(*shape), x(*shape, dtype=I32)), {"dim": dim})
            yield Case("argmax", (x(*shape),), {"dim": dim, "keep_dim": True}, ((shape, I32),))
            yield Case("cumsum", (x(*shape),), {"dim": dim})
            yield Case("softmax", (x(*shape),), {"dimension": dim})
            yield Case("prod", (x(*shape),), {"dim_arg": dim, "keep_dim": True})
            for name in ("sum", "max", "mean"):
                yield Case(name, (x(*shape),), {"dim_arg": (dim,), "keep_dim": False})
            pads = [[0, 0] for _ in shape]
            for side in (0, 1):
                pads[dim] = [0, 0]
                pads[dim][side] = 2
                yield Case("pad", (x(*shape),), {"padding": tuple(n for p in pads for n in p), "value": 0.0})
            for step in (1, 2):
                steps = tuple(step if d == dim else 1 for d in range(len(shape)))
                attributes = {"begins": (0,) * len(shape), "ends": shape, "step": steps}
                yield Case("slice_static", (x(*shape),), attributes)
    yield Case(
        "topk", (x(4, 64),), {"k": 4, "dim": -1, "largest": True, "sorted": True}, (((4, 4), F32), ((4, 4), I32))
    )
    yield Case("sort", (x(4, 64),), {"dim": -1, "descending": False, "stable": True}, (((4, 64), F32), ((4, 64), I32)))
    for end in ((0, 1), (1, 0)):
        yield Case("point_to_point", (x(4, 8),), {"sender_coord": (0, 0), "receiver_coord": end})
    for width in (8, 128):
        for name in ("mesh_partition", "reduce_scatter"):
            key = "dim" if name == "mesh_partition" else "scatter_dim"
            extra = {} if name == "mesh_partition" else {"reduce_type": "sum"}
            yield Case(
                name, (x(1, 1, 4, width),), {key: 3, "cluster_axis": 1, **extra}, (((1, 1, 4, width // 4), F32),)
            )
    yield Case("assign", (x(4, 8, dtype=BOOL),))


def groups_of(case: Case) -> list[list[int]]:
    """The operands that get one element type together."""
    there = [i for i, v in enumerate(case.operands) if v is not None]
    if case.op in TOGETHER:
        return [there] if there else []
    if case.op in TIED:
        return [[i for i in g if i in there] for g in TIED[case.op] if any(i in there for i in g)]
    return [[i] for i in there]


def calls(case: Case) -> Iterator[dict[str, Any]]:
    """The call of one occurrence, for all element types and layouts of its groups of operands."""
    groups, shapes = groups_of(case), sizes_of(case)
    row = ttnn.OPS[case.op]
    typed = any(p.source == "dtype" for p in row.python.params)
    for kinds in itertools.product(DTYPES, repeat=len(groups)):
        for tiles in itertools.product((True, False), repeat=len(groups)):
            given: list[tuple[Any, bool] | None] = [None] * len(case.operands)
            for members, kind, tile in zip(groups, kinds, tiles, strict=True):
                for i in members:
                    given[i] = (kind, tile)
            wanted = DTYPES if typed and len(groups) < 2 else (kinds[0], BF16) if typed and kinds else (None,)
            for result in dict.fromkeys(wanted):
                yield _call(case, row, given, shapes, result)


def _call(case: Case, row: Any, given: Sequence[Any], shapes: Sequence[Any], result: Any) -> dict[str, Any]:
    program = Program("f", {"y": 2, "x": 4})
    names: dict[Value, str] = {}
    operands: list[Value | None] = []
    for i, (form, shape) in enumerate(zip(given, shapes, strict=True)):
        if form is None:
            operands.append(None)
            continue
        operands.append(program.new(Type(shape, form[0], tile=form[1])))
        names[operands[-1] or 0] = f"a{i}"
    if row.on_device:
        missing = (row.operands[1] or 0) - len(operands)
        device = program.new(Type((), np.dtype("i4"), kind="device"))
        names[device] = "device"
        operands += [*[None] * missing, device]
    types = case.types
    results = tuple(program.new(Type(s, result or d, tile=True)) for s, d in types)
    op = Op(f"ttnn.{case.op}", tuple(operands), results, case.attributes)
    text = f"{row.python.callee}({arguments(program, op, row, row.python.params, names)})"
    described = [None if f is None else [list(s), f[0].name, f[1]] for f, s in zip(given, shapes, strict=True)]
    return {"op": case.op, "operands": described, "text": text, "result": None if result is None else result.name}


def main() -> None:
    """Prints the calls, one JSON object a line."""
    for case in chosen():
        for call in calls(case):
            sys.stdout.write(json.dumps(call) + "\n")


if __name__ == "__main__":
    main()
