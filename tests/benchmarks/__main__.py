"""Prints the ratios of the benchmarks as the table of the README: `python -m tests.benchmarks [pytest options]`.

What pytest prints goes to stderr, the table to stdout.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def measured(options: list[str]) -> list[dict[str, Any]]:
    """What the benchmarks recorded, in the order of the files."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "-o", "addopts=", "--benchmark-only"]
        command += ["--benchmark-disable-gc", "--benchmark-columns=median", f"--benchmark-json={out}"]
        files = [] if any(Path(o.split("::")[0]).exists() for o in options) else [str(HERE)]
        done = subprocess.run([*command, *files, *options], stdout=sys.stderr)
        if done.returncode or not out.exists():
            sys.exit(f"the benchmarks failed with exit code {done.returncode}")
        return [b["extra_info"] for b in json.loads(out.read_text())["benchmarks"] if "row" in b["extra_info"]]


def line(found: dict[str, Any]) -> str:
    """One row: what, beside what, the ratio or the figure, what it is to be."""
    unit = f" {found['unit']}" if "unit" in found else ""
    value = found["ratio"] if found.get("ratio") is not None else found["value"]
    target = "" if found.get("target") is None else f"{found['target']:g}{unit}"
    return f"| {found['row']} | {found['peer']} | {value:.3g}{unit} | {target} |"


def machine() -> str:
    """What it ran on."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.*)$", info.read_text(), re.MULTILINE) if info.exists() else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "jaxlib", "numpy"))
    processor = names[0] if names else platform.processor() or platform.machine()
    return f"{processor}, {cores} cores, {platform.system()}, Python {platform.python_version()}, {packages}."


def main(options: list[str]) -> None:
    """Prints the table."""
    rows = measured(options)
    print("| what | peer | ratio | at most |\n|---|---|---|---|")
    print("\n".join(line(r) for r in rows))
    print(f"\nMedians of rounds in turns. {machine()}")


if __name__ == "__main__":
    main(sys.argv[1:])
