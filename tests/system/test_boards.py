"""`jm.jit` over devices of the platform `tt`, which compile and hold no data; their texts run on emulated devices.

It skips without the compiler, as `test_upstream.py`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.analysis.upstream.environment import UPSTREAM
from jaxmesh.analysis.upstream.worker import close_workers
from jaxmesh.frontends.stablehlo.text import read_boundary
from tests import ROOT
from tests.generators.boards import programs
from tests.generators.upstream.judge import difference

# A text of a region states no proof that its results are equal on several devices.
pytestmark = pytest.mark.filterwarnings("ignore::jaxmesh.errors.AssumptionWarning")
MESH = jm.make_mesh((2, 4), ("y", "x"))
NAMES = list(programs(MESH))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    python = Path(os.environ.get(UPSTREAM.variable) or UPSTREAM.folder / "bin" / "python")
    if not python.exists():
        pytest.skip(f"no compiler: {UPSTREAM.variable} is not set, and upstream-env has made no {UPSTREAM.folder}")
    made, temporary = tmp_path_factory.mktemp("boards"), tmp_path_factory.mktemp("plugin")
    # The plugin ends at XLA flags that it does not know; a user's calls do not check replication.
    known = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX"))}
    description = str(temporary / "t3000.ttsys")
    env = known | {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), "TT_COMPILE_ONLY_SYSTEM_DESC": description}
    done = subprocess.run(
        [python, "-m", "tests.generators.boards", str(made)], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    yield made
    close_workers()


@pytest.mark.parametrize("name", NAMES)
def test_a_program_on_boards_is_right(folder: Path, name: str) -> None:
    """What the plugin made for its own devices is what `upstream()` makes, and computes what JAX computes."""
    fun, args, _ = programs(MESH)[name]
    sent = (folder / name / "sent.mlir").read_text()
    assert sent.count("sdy.manual_computation") == 1
    (text,) = (folder / name / "irs").glob("ttnn_[0-9]*.mlir")
    made = jm.from_mlir(sent).lower().upstream("t3000")
    assert made.refusal is None
    assert operations(made.text("ttnn")) == operations(text.read_text())
    run: Any = jm.jit(fun, mesh=MESH) if name in ("by hand", "shard_map") else jax.jit(fun)
    wanted = run(*args)
    found = made.program("ttnn").lower().compile()(*args)
    assert difference([found], [np.asarray(wanted)], read_boundary(made.text("shlo_compiler"))) <= 1e-5


def operations(text: str) -> list[str]:
    """Returns the operations of a text with their types, in order, without locations."""
    lines = [line.partition(" loc(")[0].strip() for line in text.splitlines()]
    return [line for line in lines if '= "ttnn.' in line]
