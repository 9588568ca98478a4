"""Runs in the real library's Python, without jaxmesh: makes every call of a file, and notes what it gives.

`python sweep_worker.py calls.jsonl answers.jsonl`; a call that ends the process is noted, and the next run goes on.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import ttnn

IN_PLACE = ("fill_cache", "update_cache")
"""Ops that write over an operand, which no other call gets."""


def tensor(device, shape, dtype, tile):
    """A tensor of ones on the devices."""
    made = ttnn.Tensor(
        [1.0] * int(np.prod(shape)), list(shape), getattr(ttnn.DataType, dtype.upper()), ttnn.Layout.ROW_MAJOR
    )
    if tile:
        made = ttnn.to_layout(made, ttnn.Layout.TILE)
    return ttnn.to_device(made, device)


def described(value):
    """Element type, layout, shape and memory of results."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [[v.dtype.name, v.layout.name, list(v.shape), v.storage_type().name] for v in values]


def reason(error):
    """The rule that was broken."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    found = re.search(r"info:\s*(.*?)\s*(?:backtrace|$)", text, re.DOTALL)
    return " ".join((found.group(1) if found else text).split())[:300]


def main(source, target):
    """Makes the calls that have no answer yet."""
    calls = [json.loads(line) for line in Path(source).read_text().splitlines()]
    done = len(Path(target).read_text().splitlines()) if Path(target).exists() else 0
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    device = ttnn.open_mesh_device(ttnn.MeshShape(2, 4), l1_small_size=65536)
    made = {}
    with Path(target).open("a") as out, Path(target + ".at").open("w") as at:
        if "--skip" in sys.argv:
            out.write(json.dumps({**calls[done], "error": "the process ended"}) + "\n")
            done += 1
        for number in range(done, len(calls)):
            call = calls[number]
            at.seek(0)
            at.write(f"{number:9}")
            at.flush()
            try:
                names = {"ttnn": ttnn, "device": device}
                for i, operand in enumerate(call["operands"]):
                    if operand is not None:
                        key = json.dumps(operand)
                        if key not in made:
                            made[key] = tensor(device, *operand)
                        names[f"a{i}"] = (
                            made[key] if call["op"] not in ("fill_cache", "update_cache") else tensor(device, *operand)
                        )
                call["gives"] = described(eval(call["text"], names))
            except Exception as error:
                call["error"] = reason(error)
            out.write(json.dumps(call) + "\n")
            out.flush()
            if len(made) > 400:
                made.clear()
    # Closing a mock device takes longer than ending.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:3])
