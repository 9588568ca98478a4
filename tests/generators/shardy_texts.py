"""Random StableHLO texts over the grammar of Shardy's attributes: right ones, and ones that break its rules."""

from __future__ import annotations

import random

AXES = {"q": 2, "x": 4, "data-parallel": 2, "mesh": 2}


class ShardyTexts:
    """A generator of texts; `text(seed)` is the same in every run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        names = self.random.sample(list(AXES), self.random.randint(1, 3))
        self.axes = {name: AXES[name] for name in names}
        self.named = self.random.random() < 0.5
        self.strange = self.random.choice((0.0, 0.02, 0.1))

    def pick(self, *options: str) -> str:
        return self.random.choice(options)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def mesh_body(self) -> str:
        axes = ", ".join(f'"{a}"={n}' for a, n in self.axes.items())
        if self.chance(self.strange):
            return self.pick(
                "<[]>", "<[], device_ids=[0]>", f"<[{axes}], device_ids=[1, 0]>", '<["q"=3]>', '<["other"=2]>'
            )
        return f"<[{axes}]>"

    def mesh(self) -> str:
        if self.chance(self.strange):
            return "@other"
        return "@mesh" if self.named and not self.chance(self.strange) else "mesh" + self.mesh_body()

    def axis(self) -> str:
        name = self.pick(*self.axes, *(["unknown"] if self.chance(0.1) else []))
        sub = self.pick("(1)2", "(2)2", "(1)1", "(1)4", "(3)2") if self.chance(0.5) else ""
        return f'"{name}"' + (f":{sub}" if sub else "")

    def axis_list(self) -> list[str]:
        names = [f'"{a}"' for a in self.random.sample(list(self.axes), self.random.randint(0, len(self.axes)))]
        return [self.axis()] if self.chance(self.strange * 3) else names

    def dim(self, free: list[str]) -> str:
        taken = self.axis_list() if self.chance(self.strange) else []
        taken = taken or [free.pop() for _ in range(min(len(free), self.random.randint(0, 2)))]
        body = ", ".join([*taken, *(["?"] if self.chance(0.25) else [])])
        return "{" + body + "}" + (f"p{self.random.randint(0, 3)}" if body and self.chance(0.1) else "")

    def sharding(self, rank: int, *, prefix: str = "#sdy.sharding") -> str:
        free = [f'"{a}"' for a in self.axes]
        self.random.shuffle(free)
        rank += self.random.choice((-1, 1)) if self.chance(self.strange) else 0
        dims = ", ".join(self.dim(free) for _ in range(max(rank, 0)))
        parts = [f"{self.mesh()}, [{dims}]"]
        for kind in ("replicated", "unreduced"):
            if free and self.chance(0.15):
                parts.append(f"{kind}={{{free.pop()}}}")
        return f"{prefix}<{', '.join(parts)}>"

    def bare(self, rank: int) -> str:
        return self.sharding(rank, prefix="")

    def per_value(self, *ranks: int) -> str:
        return f"#sdy.sharding_per_value<[{', '.join(self.bare(r) for r in ranks)}]>"

    def rule(self) -> str:
        return self.pick(
            "#sdy.op_sharding_rule<([i, j], [i, j])->([i, j]) {i=8, j=8}>",
            "#sdy.op_sharding_rule<([i, j], [i, j])->([i, j]) {i=8, j=8}, custom>",
            "#sdy.op_sharding_rule<([i, j], [j, i])->([i, j]) {i=8, j=8} reduction={i}>",
            "#sdy.op_sharding_rule<([ik, j], [i, j])->([i, j]) {i=4, j=8, k=2} need_replication={j} permutation={i}>",
            "#sdy.op_sharding_rule<([i], [i])->([i]) {i=8}>",
        )

    def collective(self, made: str, x: str, kind: str) -> str:
        """A collective of an operand in the sharding that it needs; in strange texts the result has any sharding."""
        axis = self.pick(*self.axes)
        quoted, over = f'"{axis}"', self.mesh()
        rows, columns, whole = (f"<{over}, [{d}]>" for d in (f"{{{quoted}}}, {{}}", f"{{}}, {{{quoted}}}", "{}, {}"))
        before, call, after = self.random.choice(
            [
                (rows, f"all_gather [{{{quoted}}}, {{}}]", whole),
                (whole, f"all_slice [{{{quoted}}}, {{}}]", rows),
                (rows, f"all_to_all [{{{quoted}}}: 0->1]", columns),
                (rows, "collective_permute", rows),
                (whole, f"reduce_scatter [{{{quoted}}}, {{}}]", rows),
                (whole, f"all_reduce {{{quoted}}}", whole),
            ]
        )
        after = self.bare(2) if self.chance(self.strange) else after
        name, *rest = call.split(" ", 1)
        placed = f"{made}_in = sdy.reshard {x} {before} : {kind}"
        return f"{placed}\n    {made} = sdy.{name} {' '.join([*rest, f'{made}_in'])} out_sharding={after} : {kind}"

    def manual(self, made: str, x: str, kind: str) -> str:
        axis = self.pick(*self.axes)
        split = f'<{self.mesh()}, [{{"{axis}"}}, {{}}]>'
        within = split if not self.chance(self.strange) else self.bare(2)
        rows = 8 // self.axes[axis] if not self.chance(self.strange) else 8
        manual = self.axes if self.chance(0.7) else [axis]
        return (
            f"{made} = sdy.manual_computation({x}) in_shardings=[{within}] out_shardings=[{split}] "
            f"manual_axes={{{', '.join(f'{chr(34)}{a}{chr(34)}' for a in manual)}}} (%in: tensor<{rows}x8xf32>) {{\n"
            f"      %n = stablehlo.negate %in : tensor<{rows}x8xf32>\n      sdy.return %n : tensor<{rows}x8xf32>\n"
            f"    }} : ({kind}) -> {kind}"
        )

    def op(self, n: int, x: str) -> str:
        made, kind = f"%v{n}", "tensor<8x8xf32>"
        direction = self.pick("NONE", "FORWARD", "BACKWARD", *(["BOTH"] if self.chance(self.strange) else []))
        return self.pick(
            f"{made} = stablehlo.add {x}, {x} : {kind}",
            f"{made} = stablehlo.add {x}, {x} {{sdy.sharding = {self.per_value(2)}}} : {kind}",
            f"{made} = stablehlo.add {x}, {x} {{sdy.sharding_rule = {self.rule()}}} : {kind}",
            f"{made} = sdy.sharding_constraint {x} {self.bare(2)} : {kind}",
            f"{made} = sdy.reshard {x} {self.bare(2)} : {kind}",
            f"{made} = sdy.propagation_barrier {x} allowed_direction={direction} : {kind}",
            f"sdy.sharding_group {x} group_id=0 : {kind}\n    {made} = stablehlo.negate {x} : {kind}",
            self.collective(made, x, kind),
            self.collective(made, x, kind),
            self.manual(made, x, kind),
        )

    def text(self) -> str:
        lines = ["module {"]
        if self.named:
            lines.append(f"  sdy.mesh @mesh = {self.mesh_body()}")
        argument = f" {{sdy.sharding = {self.sharding(2)}}}" if self.chance(0.7) else ""
        result = f" {{sdy.sharding = {self.sharding(2)}}}" if self.chance(0.5) else ""
        lines.append(f"  func.func public @main(%arg0: tensor<8x8xf32>{argument}) -> (tensor<8x8xf32>{result}) {{")
        x = "%arg0"
        for n in range(self.random.randint(1, 3)):
            lines.append("    " + self.op(n, x))
            x = f"%v{n}"
        return "\n".join([*lines, f"    return {x} : tensor<8x8xf32>", "  }", "}"])
