"""Which arguments and results of a decoded function are on the devices, where its attributes do not say it."""

from __future__ import annotations

from dataclasses import replace

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.frontends.mlir.decode import Body, Program
from jaxmesh.frontends.mlir.module import BoundaryAttributes


def _there(row: BoundaryAttributes) -> BoundaryAttributes:
    return replace(row, status="presharded", local=None, varying=())


def with_arguments_on_devices(program: Program) -> Program:
    """Returns the program with every argument on the devices, equal copies, that no mesh_shard reads.

    That is where upstream's TTNNLayout puts the arguments of which a text says nothing; and the results of a program
    without a mesh_shard.
    """
    read = _split_arguments(program.body)
    rows = enumerate(program.arguments)
    arguments = tuple(_there(a) if a.status is None and i not in read else a for i, a in rows)
    whole = not _transfers(program.body)
    results = tuple(_there(r) if whole and r.status is None else r for r in program.results)
    return replace(program, arguments=arguments, results=results)


def with_layouts_obeyed(program: Program) -> Program:
    """Returns the program with what its types place on the devices there, if it has no transfers, which say it."""
    if not any(program.body.layouts) or _transfers(program.body):
        return program
    layouts = dict(enumerate(program.body.layouts))
    for step in program.body.steps:
        layouts.update(zip(step.results, step.layouts or [""] * len(step.results), strict=True))
    there = {v for v, layout in layouts.items() if layout and "#ttnn.buffer_type<system_memory>" not in layout}
    arguments = tuple(_there(a) if a.status is None and i in there else a for i, a in enumerate(program.arguments))
    made = zip(program.body.results, program.results, strict=True)
    results = tuple(_there(r) if r.status is None and v in there else r for v, r in made)
    return replace(program, arguments=arguments, results=results)


def has_layouts(program: Program) -> bool:
    """Returns True if types of the program have layouts of TTNN."""
    return any(program.body.layouts) or any(step.layouts for step in program.body.steps)


def calls_once(program: Program) -> bool:
    """Returns True if the program calls functions of which upstream keeps the results."""
    return any(step.op.endswith(".load_cached") for step in program.body.steps)


def _transfers(body: Body) -> bool:
    return any(has_trait(s.op, Trait.TRANSFERS) or (s.callee is not None and _transfers(s.callee)) for s in body.steps)


def _split_arguments(body: Body) -> set[int]:
    """Returns the numbers of the arguments that a mesh_shard reads, in the function or in one that it calls."""
    found: set[int] = set()
    for step in body.steps:
        if step.callee is not None:
            found.update(step.operands[i] for i in _split_arguments(step.callee))
        elif step.op == "ttir.mesh_shard":
            found.update(step.operands)
    return {i for i in found if i < len(body.arguments)}
