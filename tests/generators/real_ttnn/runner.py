"""Runs jobs in the process of the real `ttnn`: `runner.py KIND FIRST FOLDER`; started by `process.py`.

FOLDER has `jobs.json`. Appends one line of JSON per job to `outcomes.jsonl`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import ttnn

# By its path: importing the package of the tests would import JAX.
kind, first, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
spec = importlib.util.spec_from_file_location(kind, Path(__file__).with_name(f"{kind}.py"))
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
jobs = json.loads((folder / "jobs.json").read_text())[first:]
meshes = module.Meshes(ttnn)
with (folder / "outcomes.jsonl").open("a") as file:
    for job in jobs:
        file.write(json.dumps(module.outcome_of(ttnn, meshes, job)) + "\n")
        file.flush()
meshes.close()
