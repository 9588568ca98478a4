"""Writes the API reference, HTML made of the docstrings, into a folder; `.ci/pages.py` puts it on the site.

The facade re-exports what other modules define, which pdoc shows only where `__all__` names it.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pdoc

import jaxmesh
from jaxmesh import errors, ttnn


def public(module: types.ModuleType) -> list[str]:
    """The names that a module offers; its submodules are how it is built."""
    names = getattr(module, "__all__", None) or [n for n in dir(module) if not n.startswith("_")]
    inside = {"TYPE_CHECKING", "Any", "annotations"}
    return [n for n in names if not isinstance(getattr(module, n), types.ModuleType) and n not in inside]


def members(cls: pdoc.doc.Class) -> list[pdoc.doc.Doc[object]]:
    """The members of a class, with those of its bases that have no page of their own."""
    shown = {f"{cls.modulename}.{name}" for name in sys.modules[cls.modulename].__all__}
    own = {(cls.modulename, cls.qualname), cls.taken_from}
    kept: list[pdoc.doc.Doc[object]] = []
    for member in cls.members.values():
        module, base = member.taken_from[0], member.taken_from[1].rpartition(".")[0]
        hidden = module.split(".")[0] == "jaxmesh" and f"{cls.modulename}.{base}" not in shown
        if hidden or (module, base) in own:
            kept.append(member)
    return kept


def main(folder: Path) -> None:
    """Writes the pages, and checks that everything public is on them with a docstring."""
    modules = {"jaxmesh": jaxmesh, "jaxmesh.errors": errors, "jaxmesh.ttnn": ttnn}
    pdoc.doc.Class.own_members = property(members)
    for module in modules.values():
        module.__all__ = public(module)
        # What a module makes when it is asked for is there from now on.
        vars(module).update({n: getattr(module, n) for n in module.__all__})
    pdoc.render.configure(docformat="google", search=True, show_source=False)
    pdoc.pdoc(*modules, output_directory=folder)
    missing: list[str] = []
    for name, module in modules.items():
        page = (folder / f"{name.replace('.', '/')}.html").read_text()
        for each in module.__all__:
            found = getattr(module, each)
            if f'id="{each}"' not in page:
                missing.append(f"{name}.{each} is not on its page")
            elif callable(found) and not (found.__doc__ or "").strip():
                missing.append(f"{name}.{each} has no docstring")
    if missing:
        sys.exit("\n".join(missing))
    print(f"{sum(len(m.__all__) for m in modules.values())} names in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
