"""Pictures say what is: slices, places, colours and words, read back from the SVG and compared with the oracle."""

from __future__ import annotations

import html.parser
import itertools
import math
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.drawing.colors import PALETTE, contrast, rgb
from jaxmesh.drawing.text_layout import width
from tests.generators.oracles import EVERY, cases, coordinates, oracle_shard

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ("w", "z", "y", "x")


# --- reading a picture back ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """A box of a picture: kind, colour, hover lines, place, and the texts in it."""

    kind: str
    fill: str
    hover: list[str]
    rect: tuple[float, float, float, float]
    texts: list[tuple[str, float, float, float, str]]

    @property
    def named(self) -> str:
        """The label of its piece, empty of what holds nothing."""
        (line,) = [t for t in self.hover if re.match(r"(holds )?(#\d+|[A-Z]): ", t)] or [""]
        return line.removeprefix("holds ").partition(": ")[0]

    @property
    def slices(self) -> list[tuple[int, int]]:
        (line,) = [t for t in self.hover if re.match(r"(holds )?(#\d+|[A-Z]): ", t)]
        return [(int(a), int(b)) for a, b in re.findall(r"(\d+):(\d+)", line.partition(": ")[2])]


@dataclass(frozen=True)
class Read:
    """A picture, read back."""

    size: tuple[float, float]
    boxes: list[Box]
    free: list[tuple[str, float, float, float, str]]

    def of(self, kind: str) -> list[Box]:
        return [b for b in self.boxes if b.kind == kind]


def text_of(node: Any) -> tuple[str, float, float, float, str]:
    """A text, where it begins, its baseline, its size, and its colour."""
    said, size = node.text or "", float(node.get("font-size"))
    share = {"start": 0.0, "middle": 0.5, "end": 1.0}[node.get("text-anchor")]
    return said, float(node.get("x")) - share * width(said, size), float(node.get("y")), size, node.get("fill")


def read(svg: str) -> Read:
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    (body,) = root.findall(f"{SVG}g")
    boxes: list[Box] = []
    for group in body.findall(f"{SVG}g"):
        rect, title = group.find(f"{SVG}rect"), group.find(f"{SVG}title")
        assert rect is not None
        x, y, w, h = (float(rect.get(k, "")) for k in ("x", "y", "width", "height"))
        hover = [] if title is None else (title.text or "").split("\n")
        texts = [text_of(t) for t in group.findall(f"{SVG}text")]
        boxes.append(Box(group.get("class", "").split()[0], rect.get("fill", ""), hover, (x, y, w, h), texts))
    _, _, w, h = map(float, root.get("viewBox", "").split())
    return Read((w, h), boxes, [text_of(t) for t in body.findall(f"{SVG}text")])


def check_layout(picture: Read) -> None:
    """No text is wider or higher than its box, none leaves the picture, and none covers another or a box."""
    wide, high = picture.size
    for box in picture.boxes:
        x, y, w, h = box.rect
        assert -0.01 <= x <= x + w <= wide + 0.01
        assert -0.01 <= y <= y + h <= high + 0.01
        for said, left, base, size, ink in box.texts:
            assert x - 0.5 <= left
            assert left + width(said, size) <= x + w + 0.5, (said, box)
            assert y - 0.5 <= base - 0.75 * size
            assert base + 0.2 * size <= y + h + 0.5, (said, box)
            assert ink == "currentColor" if box.fill == "none" else contrast(ink, box.fill) >= 4.5
    spans = [(s, left, base - 0.7 * size, left + width(s, size), base + 0.15 * size)
             for s, left, base, size, _ in picture.free]  # fmt: skip
    for _, x0, y0, x1, y1 in spans:
        assert x0 >= -10.01
        assert y0 >= -0.01
        assert x1 <= wide
        assert y1 <= high
    solid = [("", x, y, x + w, y + h) for x, y, w, h in (b.rect for b in picture.boxes)]
    for a, b in itertools.chain(itertools.combinations(spans, 2), itertools.product(spans, solid)):
        apart = a[3] <= b[1] + 0.6 or b[3] <= a[1] + 0.6 or a[4] <= b[2] + 0.6 or b[4] <= a[2] + 0.6
        assert apart, (a, b)


def check_colors(picture: Read) -> None:
    """A piece has one colour and one label, on the tensor, on every device, and in the legend."""
    by_label: dict[str, set[str]] = {}
    by_slices: dict[tuple[Any, ...], set[str]] = {}
    for box in picture.boxes:
        if not box.named:
            continue
        by_label.setdefault(box.named, set()).add(box.fill)
        by_slices.setdefault(tuple(box.slices), set()).add(box.named)
        for said, *_ in box.texts:
            if re.fullmatch(r"#\d+|[A-Z]", said):
                assert said == box.named
    assert all(len(fills) == 1 for fills in by_label.values())
    assert all(len(labels) == 1 for labels in by_slices.values())
    assert len(by_slices) == len(by_label)
    for box in picture.of("swatch"):
        assert by_label[box.texts[0][0]] == {box.fill}


def abstract(sizes: Sequence[int]) -> AbstractMesh:
    return AbstractMesh(tuple(sizes), NAMES[-len(sizes) :])


def axis(index: int, rank: int) -> str:
    return NAMES[-rank:][index]


# --- the oracle ------------------------------------------------------------------------------------------------------


@st.composite
def layouts(draw: Any) -> tuple[list[int], list[list[int]], list[int]]:
    """Full shape, mesh axes per dim, mesh: ranks 0 to 5, meshes of 1 to 4 axes."""
    mesh = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda m: math.prod(m) <= 64))
    rank = draw(st.integers(0, 5))
    dims: list[list[int]] = [[] for _ in range(rank)]
    for a in draw(st.permutations(range(len(mesh)))):
        where = draw(st.integers(-1, rank - 1))
        if where >= 0:
            dims[where].append(a)
    chunk = st.sampled_from([1, 1, 2, 3, 50])
    return [draw(chunk) * math.prod(mesh[a] for a in axes) for axes in dims], dims, mesh


def spec_of(dims: Sequence[Sequence[int]], mesh: Sequence[int]) -> P:
    return P(*[tuple(axis(a, len(mesh)) for a in axes) or None for axes in dims])


def by_coordinate(picture: Read, mesh: Sequence[int]) -> dict[tuple[int, ...], Box]:
    found: dict[tuple[int, ...], Box] = {}
    for box in picture.of("device"):
        said = dict(re.findall(r"(\w)=(\d+)", box.hover[0]))
        found[tuple(int(said[n]) for n in NAMES[-len(mesh) :])] = box
    assert len(found) == len(picture.of("device"))
    return found


@cases(160)
@given(layouts())
def test_slices_are_the_oracles(layout: tuple[list[int], list[list[int]], list[int]]) -> None:
    shape, dims, mesh = layout
    made = jm.visualize(shape, spec_of(dims, mesh), mesh=abstract(mesh), dtype=np.int16)
    picture = read(made._repr_svg_())
    devices = by_coordinate(picture, mesh)
    assert sorted(devices) == coordinates(mesh)
    # Numbers along each dim: what the oracle takes of them is what the device must be said to hold.
    grids = np.indices(shape, sparse=True)
    for coordinate, box in devices.items():
        for dim, (start, stop) in enumerate(box.slices):
            ruler = np.broadcast_to(grids[dim], [n if d == dim else 1 for d, n in enumerate(shape)])
            alone = [dims[d] if d == dim else [] for d in range(len(shape))]
            want = oracle_shard(ruler, alone, mesh, coordinate)
            assert list(range(start, stop)) == want.ravel().tolist()
        count = math.prod(b - a for a, b in box.slices)
        assert any(f"{2 * count} B" in line for line in box.hover)
    check_colors(picture)
    check_layout(picture)
    check_regions(picture, shape)
    check_words(str(made), devices)


def check_regions(picture: Read, shape: Sequence[int]) -> None:
    """Regions are the pieces, each once, and lie as their slices say: to one scale along rows and columns."""
    regions = picture.of("region")
    assert sorted(r.named for r in regions) == sorted({d.named for d in picture.of("device")})
    assert sum(math.prod(b - a for a, b in r.slices) for r in regions) == math.prod(shape)
    for dim, at, size in [(-1, 0, 2), (-2, 1, 3)]:
        drawn = range(max(-2, -len(shape)), 0)
        if len(shape) < -dim or not regions or any(len({r.slices[d] for r in regions}) > 32 for d in drawn):
            continue  # more rows or columns than that go on in another panel
        rows = [(r.slices[:-2], r.slices[dim], r.rect[at], r.rect[size]) for r in regions]
        scale = max(length / (b - a) for _, (a, b), _, length in rows)
        for front, (a0, b0), x0, length in rows:
            assert length == pytest.approx(scale * (b0 - a0), abs=0.1)
            for other, (a1, _), x1, _ in rows:
                if front == other:
                    assert x1 - x0 == pytest.approx(scale * (a1 - a0), abs=0.1)


def check_words(text: str, devices: dict[tuple[int, ...], Box]) -> None:
    """The plain text lists every piece with its slices, up to the number that it lists."""
    said = {b.named: b.slices for b in devices.values()}
    if len(said) > 32:
        assert f"... {len(said) - 9} more" in text
        return
    for label, parts in said.items():
        row = ", ".join(f"{a}:{b}" for a, b in parts)
        assert re.search(rf"^{label}  +\[{re.escape(row)}\]", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("shape", "spec"),
    [((8, 8), P("y", "x")), ((8, 8), P(("x", "y"))), ((16,), P(None)), ((), P()), ((4, 4, 8), P(None, "x", "y"))],
)
def test_an_array_is_where_jax_puts_it(shape: tuple[int, ...], spec: P) -> None:
    mesh = jm.make_mesh((2, 4))
    sharding = NamedSharding(mesh, spec)
    x = jax.device_put(jnp.zeros(shape, jnp.bfloat16), sharding)
    picture = read(jm.visualize(x)._repr_svg_())
    index = sharding.devices_indices_map(shape)
    for device in picture.of("device"):
        number = int(re.findall(r"device (\d+)", device.hover[0])[0])
        (held,) = [i for d, i in index.items() if d.id == number]
        assert device.slices == [s.indices(n)[:2] for s, n in zip(held, shape, strict=True)]
    assert str(jm.visualize(x)) == str(jm.visualize(x, spec, mesh=mesh))
    struct = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)
    assert str(jm.visualize(struct)) == str(jm.visualize(x))


def test_an_array_on_one_device() -> None:
    text = str(jm.visualize(jax.device_put(jnp.zeros((3, 5)), jax.devices()[3])))
    assert "one device: each device holds all of it, 60 B" in text
    assert "\n3 A\n" in text


@pytest.mark.slow(but_one_in=3)
@pytest.mark.parametrize(
    "sizes", [[8], [2, 4], [2, 2, 2], [2, 2, 2, 2], [512], [16, 32], [256, 2], [8, 8, 8], [4, 4, 4, 8]]
)
@pytest.mark.parametrize("rank", range(6))
def test_every_mesh_and_rank_is_legible(sizes: list[int], rank: int) -> None:
    if rank % 2 and math.prod(sizes) > 16 and not EVERY:
        return
    names = NAMES[-len(sizes) :]
    rows = [names[i] if i < len(names) else None for i in range(rank)]
    shape = [2 * sizes[i] if i < len(sizes) else 3 for i in range(rank)]
    picture = read(jm.visualize(shape, P(*rows), mesh=abstract(sizes))._repr_svg_())
    check_colors(picture)
    if math.prod(sizes) <= 64 or EVERY:
        check_layout(picture)
    assert len(picture.of("device")) == math.prod(sizes)
    assert all(box.texts for box in picture.of("device"))
    assert min(box.texts[0][3] for box in picture.of("device")) >= 6.5
    assert picture.size[0] <= 1000


def test_512_devices_keep_their_labels_on_the_tensor_too() -> None:
    picture = read(jm.visualize((4096, 8192), P("y", "x"), mesh=abstract([16, 32]))._repr_svg_())
    assert (
        len({b.texts[0][0] for b in picture.of("region")}) == len({b.texts[0][0] for b in picture.of("device")}) == 512
    )
    check_layout(picture)


# --- odd shapes ------------------------------------------------------------------------------------------------------


def test_uneven_empty_and_long_shapes() -> None:
    uneven = jm.visualize((10,), P("x"), mesh=abstract([2, 4]))
    parts = [b.slices for b in read(uneven._repr_svg_()).of("region")]
    assert parts == [[(0, 3)], [(3, 6)], [(6, 9)], [(9, 10)]]
    assert "4 shards do not divide dim 0 of size 10" in str(uneven)
    assert "pad the dim to 12" in str(uneven)
    short = jm.visualize((5,), P("x"), mesh=abstract([8]))
    assert len(read(short._repr_svg_()).of("region")) == 5
    assert "3 empty" in str(short)
    none = read(jm.visualize((0, 4), P("y"), mesh=abstract([2, 4]))._repr_svg_())
    (region,) = none.of("region")
    assert region.fill == "none"
    assert region.hover == ["[0:0, 0:4]: no elements"]
    for shape in [(100_000, 7), (7, 100_000)]:
        picture = read(jm.visualize(shape, P(), mesh=abstract([2, 4]))._repr_svg_())
        (region,) = picture.of("region")
        assert 0.3 < region.rect[2] / region.rect[3] < 3
        assert any(t[0] == "100000" for t in picture.free)
        check_layout(picture)


def test_names_from_outside_inject_nothing() -> None:
    with pytest.raises(jm.MeshError, match="rename the axis"):
        jm.visualize(AbstractMesh((2, 2), ("\u202e\x01\ud800\u30e1\u30c3", "z")))
    evil = "<b>&]]>" + "n" * 200
    mesh = AbstractMesh((2, 2), (evil, "z"))
    for made in (jm.visualize((8, 8), P(evil, "z"), mesh=mesh), jm.visualize(mesh)):
        svg = made._repr_svg_()
        picture = read(svg)
        check_layout(picture)
        assert "<b>" not in svg
        assert str(made).encode()
        parse_html(made._repr_html_())
    traced = jm.jit(lambda x: jm.full_to_shard(x, P(evil)), mesh=mesh).trace(jnp.ones(4))
    for page in (traced._repr_html_(), jm.visualize(traced)._repr_html_(), jm.visualize(traced.lower())._repr_html_()):
        parse_html(page)
        assert "<b>&" not in page
        assert page.encode()


# --- multi-device tensors --------------------------------------------------------------------------------------------


S, R = ttnn.PlacementShard, ttnn.PlacementReplicate()


@pytest.mark.parametrize(
    ("placements", "override"),
    [
        ([S(0), R], None),
        ([S(-1), S(0)], None),
        ([R, R], None),
        ([S(0)], [8]),
        ([S(1)], [4]),
        ([R], [3]),
        ([S(0), S(1)], [1, 2]),
    ],
)
def test_a_tensor_is_where_it_was_put(
    placements: list[Any], override: list[int] | None, device: ttnn.MeshDevice
) -> None:
    full = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
    config = ttnn.MeshMapperConfig(placements, ttnn.MeshShape(override) if override else None)
    tensor = ttnn.distribute_tensor(full, ttnn.create_mesh_mapper(device, config))
    picture = read(jm.visualize(tensor)._repr_svg_())
    held = {tuple(c): np.asarray(x) for c, x in tensor.shards()}
    drawn = by_coordinate(picture, [2, 4])
    assert sorted(c for c, b in drawn.items() if b.named) == sorted(held)
    for coordinate, shard in held.items():
        part = full[tuple(slice(a, b) for a, b in drawn[coordinate].slices)]
        assert part.tobytes() == shard.tobytes()
    for coordinate in set(drawn) - set(held):
        assert drawn[coordinate].fill == "none"
        assert drawn[coordinate].hover[-1] == "holds nothing"
    check_colors(picture)
    check_layout(picture)
    parse_html(tensor._repr_html_())


def test_a_computed_tensor_claims_no_slices() -> None:
    mesh = jm.make_mesh((2, 4))
    made = jm.jit(lambda x: lax.psum(jm.full_to_shard(x, P("y", "x")), "x"), mesh=mesh)(jnp.ones((8, 16)))
    picture = read(jm.visualize(made)._repr_svg_())
    assert {(b.named, b.hover[1]) for b in picture.of("device")} == {("A", "holds A: y=0"), ("B", "holds B: y=1")}
    assert "not the part of the full tensor" in str(jm.visualize(made))
    check_layout(picture)
    same = jm.jit(lambda x: lax.psum(jm.full_to_shard(x, P("x")), ("x",)), mesh=mesh)(jnp.ones(8))
    assert "the same on every device" in str(jm.visualize(same))
    partial = ttnn.distribute_tensor(
        np.ones(6), ttnn.create_mesh_mapper(ttnn.open_mesh_device((2, 4)), ttnn.MeshMapperConfig([S(0)], [3]))
    )
    computed = jax.jit(lambda t: t)(partial)
    assert computed.topology is None
    drawn = by_coordinate(read(jm.visualize(computed)._repr_svg_()), [2, 4])
    assert sorted(c for c, b in drawn.items() if b.named) == [(0, 0), (0, 1), (0, 2)]
    assert "5 devices hold nothing" in str(jm.visualize(computed))


def test_a_tensor_that_holds_nothing(device: ttnn.MeshDevice) -> None:
    tensor = ttnn.distribute_tensor(np.ones(8), ttnn.shard_tensor_to_mesh_mapper(device, 0))
    tensor.deallocate()
    assert "deallocated" in tensor._repr_html_()
    with pytest.raises(jm.ResidencyError, match="deallocated"):
        jm.visualize(tensor)
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(jm.DeletedError, match="visualize got an array"):
        jm.visualize(gone)


# --- words and files -------------------------------------------------------------------------------------------------

GOLDEN = """\
bfloat16[16, 8, 4]  P('z', None, ('x', 'y'))
mesh z=2, y=2, x=2: each device holds [8, 8, 1], 128 B of 1 KiB; 8 pieces, no copies
dim 0: 16 in 2 pieces of 8 over z
dim 1: 8, whole
dim 2: 4 in 4 pieces of 1 over x, y

z=0
     x=0  x=1
y=0  0 A  1 C
y=1  2 B  3 D

z=1
     x=0  x=1
y=0  4 E  5 G
y=1  6 F  7 H

A  [0:8, 0:8, 0:1]   device 0 (z=0, y=0, x=0)  128 B
B  [0:8, 0:8, 1:2]   device 2 (z=0, y=1, x=0)  128 B
C  [0:8, 0:8, 2:3]   device 1 (z=0, y=0, x=1)  128 B
D  [0:8, 0:8, 3:4]   device 3 (z=0, y=1, x=1)  128 B
E  [8:16, 0:8, 0:1]  device 4 (z=1, y=0, x=0)  128 B
F  [8:16, 0:8, 1:2]  device 6 (z=1, y=1, x=0)  128 B
G  [8:16, 0:8, 2:3]  device 5 (z=1, y=0, x=1)  128 B
H  [8:16, 0:8, 3:4]  device 7 (z=1, y=1, x=1)  128 B"""


def test_plain_text() -> None:
    made = jm.visualize((16, 8, 4), P("z", None, ("x", "y")), mesh=jm.make_mesh((2, 2, 2)), dtype=jnp.bfloat16)
    assert str(made) == repr(made) == GOLDEN
    wide = str(jm.visualize((1024,), P("x"), mesh=abstract([512])))
    assert max(map(len, wide.splitlines())) <= 110


def test_terminals_show_colours(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    pictures = [
        jm.visualize((16, 8), P("y"), mesh=jm.make_mesh((2, 4))),
        jm.visualize(jm.make_mesh((2, 2, 2))),
        jm.visualize((1024,), P("x"), mesh=abstract([512])),
        jm.visualize(program().lower(*ARGS)),
    ]
    for made in pictures:
        made.show()
        assert capsys.readouterr().out == f"{made}\n"
        made.show(color=True)
        text = capsys.readouterr().out
        assert re.sub(r"\x1b\[[\d;]*m", "", text) == f"{made}\n"
        assert ("\x1b[" in text) is (made is not pictures[1])
    pictures[0].show(color=True)
    shown = capsys.readouterr().out
    assert all("48;2;" + ";".join(map(str, rgb(color))) in shown for color in PALETTE[:2])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    pictures[0].show()
    assert capsys.readouterr().out == shown
    monkeypatch.setenv("NO_COLOR", "1")
    pictures[0].show()
    assert capsys.readouterr().out == f"{pictures[0]}\n"


def test_files(tmp_path: Path) -> None:
    made = jm.visualize((16, 8), P("y"), mesh=jm.make_mesh((2, 4)))
    ElementTree.parse(made.save(tmp_path / "a.svg"))
    parse_html(made.save(str(tmp_path / "a.html")).read_text(encoding="utf-8"))
    assert made.save(tmp_path / "a.txt").read_text() == f"{made}\n"
    with pytest.raises(jm.ArgumentValueError, match=r"\.svg, \.html, \.txt.*'\.png'"):
        made.save(tmp_path / "a.png")
    with pytest.raises(jm.FolderError, match="No such file"):
        made.save(tmp_path / "none" / "a.svg")
    with pytest.raises(jm.ArgumentValueError, match=r"\.html, \.txt, got"):
        jm.visualize(program().lower(*ARGS)).save(tmp_path / "a.svg")


class Strict(html.parser.HTMLParser):
    """A page whose tags close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parse_html(page: str) -> Strict:
    """Checks a page: well nested, no scripts, nothing from outside, no ids, styles of its own classes alone."""
    parser = Strict()
    parser.feed(page)
    assert parser.open == []
    names = {tag for tag, _ in parser.tags}
    assert not names & {"script", "link", "img", "iframe", "image", "foreignobject"}
    for _, attributes in parser.tags:
        assert not [k for k in attributes if k.startswith("on") or k in ("href", "src", "id")]
    classes = {c for _, a in parser.tags for c in (a.get("class") or "").split()}
    for style in re.findall(r"<style>(.*?)</style>", page.replace("@media (prefers-color-scheme:dark)", "")):
        assert "url(" not in style
        assert "@import" not in style
        if ":root" not in style:
            for selector in re.findall(r"(?:^|[{},])\s*(\.jm-\w+)", style):
                assert selector[1:] in classes
            rules = re.sub(r"@media[^{]*\{|\{[^{}]*\}", "\n", style).strip()
            assert all(
                part.strip().startswith(".jm-") for part in re.split(r"[\n,](?![^(]*\))", rules) if part.strip("} ")
            )
    return parser


def test_pictures_on_one_page_keep_their_styles() -> None:
    pages = [jm.visualize((8,), P(s), mesh=abstract([2, 4]))._repr_html_() for s in ("y", "x")]
    assert not set(re.findall(r"jm-\w+", pages[0])) & set(re.findall(r"jm-\w+", pages[1]))
    assert pages[0] == jm.visualize((8,), P("y"), mesh=abstract([2, 4]))._repr_html_()
    for page in pages:
        parse_html(page)
        assert "currentColor" in page
        assert "prefers-color-scheme" not in page  # the page's own colours, whatever the system says
    assert "prefers-color-scheme:dark" in jm.visualize((8,), P(), mesh=abstract([2]))._repr_svg_()


def test_a_page_without_styles_shows_the_plain_text() -> None:
    """Notebooks that are not trusted lose `<style>` and `<svg>`: what is left says the same in words."""
    made = jm.visualize((8,), P("<y>"), mesh=AbstractMesh((2,), ("<y>",)))
    for picture in (made, jm.visualize(program().lower(*ARGS))):
        page = picture._repr_html_()
        parse_html(page)
        shown = re.search(r'</style><pre class="plain">(.*?)</pre><div class="drawn" style="display:none">', page, re.S)
        assert shown is not None
        assert html.unescape(shown[1]) == str(picture)
        name = re.search(r'<div class="(jm-\w+)">', page)
        assert name is not None
        assert f"<style>.{name[1]}>.plain{{display:none}}.{name[1]}>.drawn{{display:block!important}}" in page


def test_a_picture_on_a_narrow_page_is_scrolled_before_its_texts_are_too_small() -> None:
    made = jm.visualize((512,), P("x"), mesh=abstract([512]))
    (wide,) = re.findall(r'<svg [^>]*width="([\d.]+)"', made._repr_html_())
    (least,) = re.findall(r"min-width:([\d.]+)px", made._repr_html_())
    assert float(least) == pytest.approx(0.8 * float(wide), abs=0.01)
    assert "overflow-x:auto" in made._repr_html_()
    assert "min-width" not in made._repr_svg_()


# --- programs --------------------------------------------------------------------------------------------------------

ARGS = (np.ones((4, 8), np.float32), np.ones((8, 16), np.float32), np.ones((16, 8), np.float32))


def program(mesh: Mesh | None = None) -> Any:
    @jm.jit(mesh=mesh or jm.make_mesh((2, 4)))
    def mlp(x: Any, w1: Any, w2: Any) -> Any:
        x = jm.full_to_shard(x, P("y"))
        w1 = jm.full_to_shard(w1, P(None, "x"))
        w2 = jm.full_to_shard(w2, P("x"))
        y = lax.psum(jnp.tanh(x @ w1) @ w2, "x")
        return jm.shard_to_full(y, P("y"))

    return mlp


def lit(page: str) -> list[str]:
    return re.findall(r'class="op lit">(?:[^<]*)<b>([\w.]+)<', page)


def test_stages_show_their_texts() -> None:
    traced, lowered = program().trace(*ARGS), program().lower(*ARGS)
    above, both = traced._repr_html_(), lowered._repr_html_()
    assert lit(above) == ["ttir.mesh_shard"] * 4
    spreading = ["ttir.mesh_shard", "ttnn.distribute_tensor"] * 3
    assert lit(both) == [*spreading, "ttnn.reshape", "ttnn.reshape", "ttir.mesh_shard", "ttnn.aggregate_tensor"]
    for page, texts in ((above, [traced.as_text()]), (both, [traced.as_text(), lowered.as_text()])):
        parser = parse_html(page)
        ops = re.findall(r'<div class="op \w+">(.*?)</div>', page)
        shown = [html.unescape(re.sub(r"<[^>]*>", "", t)) for t in ops]
        want = [line.strip().replace('"', "") for text in texts for line in text.splitlines()]
        assert sorted(t.replace('"', "") for t in shown) == sorted(w for w in want if w != "}")
        assert [t for t, _ in parser.tags].count("style") == 1
    # What stands in a row comes from one line of the source.
    rows = re.findall(r'<tr class="src"><td colspan="2"><b>(.*?)</b> (.*?)</td></tr><tr>(.*?)</tr>', both)
    (row,) = [body for _, code, body in rows if "w1 = jm.full_to_shard" in html.unescape(code)]
    assert lit(row) == ["ttir.mesh_shard", "ttnn.distribute_tensor"]


def test_a_program_without_text_shows_its_jaxpr() -> None:
    mesh = jm.make_mesh((2, 4))
    traced = jm.jit(lambda x: jax.lax.linalg.hessenberg(jm.full_to_shard(x, P("y")))[0], mesh=mesh).trace(
        jnp.ones((2, 4, 4))
    )
    for stage in (traced, traced.lower()):
        page = stage._repr_html_()
        parse_html(page)
        assert "MissingRuleError" in page
        assert html.escape(stage.as_text("jaxpr").splitlines()[1].strip()) in page


def test_a_program_without_words_still_shows() -> None:
    mesh = jax.make_mesh((2, 4), ("y", "x"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def local(x: Any) -> Any:
        jax.debug.callback(lambda _: None, x)
        return x * 2

    body = jm.shard_map(local, mesh=mesh, in_specs=P("y"), out_specs=P("y"))
    traced = body.trace(jnp.ones((4, 8)))
    assert "InexpressibleError" in traced._repr_html_()
    parse_html(traced.lower()._repr_html_())
    with pytest.raises(jm.InexpressibleError):
        jm.visualize(traced)


FLOW = """\
Lowered(mlp, mesh={'y': 2, 'x': 4})
at least 3.67 ns on t3000: c compute 0%, d DRAM 30%, l links 70%
  x                           f32[4,8]   host
  w1                          f32[8,16]  host
  w2                          f32[16,8]  host
> %0 = distribute_tensor(x)   f32[2,8]   shards over y
> %1 = distribute_tensor(w1)  f32[8,4]   shards over x
> %2 = distribute_tensor(w2)  f32[4,8]   shards over x
  %3 = dot_general(%0, %1)    f32[2,4]   shards over y, x
  %4 = tanh(%3)               f32[2,4]   shards over y, x
  %5 = dot_general(%4, %2)    f32[2,8]   shards over y, x
> %6 = psum(%5)               f32[2,8]   shards over y
> %7 = aggregate_tensor(%6)   f32[4,8]   host
  return %7                   f32[4,8]   host"""


def test_values_of_a_program() -> None:
    lowered = program().lower(*ARGS)
    text = str(jm.visualize(lowered))
    assert re.sub(r" +\S*isualize\.py:.*", "", text) == FLOW
    assert all("isualize.py:" in line for line in text.splitlines() if "= " in line[2:20])
    traced = jm.visualize(program().trace(*ARGS))
    assert str(traced).count("mesh_shard") == 4
    assert [s.where for s in traced.flow.steps] == [s.where for s in jm.visualize(lowered).flow.steps]
    compiled = jm.visualize(lowered.compile())
    assert [s.where for s in compiled.flow.steps] == ["cut over y", "cut over x", "cut over x", "cut over y"]
    for made in (traced, jm.visualize(lowered), compiled):
        page = parse_html(made._repr_html_())
        assert [t for t, _ in page.tags].count("svg") == sum(s.placement is not None for s in made.flow.steps)
    # What a thumbnail says is what the mapper did.
    cut = jm.visualize(lowered).flow.steps[4].placement
    assert [p.box for p in cut.pieces] == [((0, 8), (i * 4, i * 4 + 4)) for i in range(4)]


def test_a_broadcast_among_devices_is_a_move() -> None:
    def f(x: Any) -> Any:
        x = lax.pbroadcast(jm.full_to_shard(x, P(None, "x")), "x", 2)
        return jm.shard_to_full(x, P(None, "x"))

    lowered = jm.jit(f, mesh=jm.make_mesh((2, 4))).lower(ARGS[0])
    steps = jm.visualize(lowered).flow.steps
    assert [s.text for s in steps if s.moves][1] == "%1 = pbroadcast(%0)"
    # XLA has no such collective on CPUs; the reference executor has.
    shards = np.split(ARGS[0], 4, axis=1)
    np.testing.assert_array_equal(lowered.reference(ARGS[0]), np.concatenate([shards[2]] * 4, axis=1))


def test_a_compiled_program_says_what_stays_and_what_is_not_read() -> None:
    mesh = jm.make_mesh((2, 4))
    everywhere = jm.jit(lambda x: jm.full_to_shard(x, P()), mesh=mesh)(jnp.ones(8))

    def f(x: Any, unread: Any, kept: Any) -> Any:
        return jm.full_to_shard(x, P()), jm.full_to_shard(x, P("x")), x + 1, kept

    steps = jm.visualize(jm.jit(f, mesh=mesh).lower(jnp.ones(8), jnp.ones(3), everywhere).compile()).flow.steps
    assert [s.where for s in steps[1:]] == [
        "not read", "replicated", "replicated", "shards over x", steps[0].where, "replicated",
    ]  # fmt: skip
    assert [s.placement is None for s in steps[1:]] == [True, False, False, False, False, False]


def test_a_mesh_device_is_drawn_as_its_mesh(device: ttnn.MeshDevice) -> None:
    assert str(jm.visualize(device)) == str(jm.visualize(device.mesh))


def test_bodies_and_long_programs() -> None:
    @jm.jit(mesh=jm.make_mesh((2, 4)))
    def f(x: Any) -> Any:
        y = jm.full_to_shard(x, P("y"))
        y, _ = lax.scan(lambda c, _: (c + lax.psum(c, "y"), None), y, None, length=3)
        for _ in range(450):
            y = y + 1
        return y, x.sum(), jm.full_to_shard(x, P())

    folded, whole = (str(jm.visualize(f.lower(jnp.ones((4, 8))), whole=w)) for w in (False, True))
    assert re.search(r"^  scan of 3 +1 equation .*\n>   all_reduce over y +f32\[2,8\] +y → replicated", folded, re.M)
    assert ">   %2 = psum(in0)" in whole
    # An equation of each sum, and from JAX 0.12 on one that types its constant.
    per_sum = 1 if jax.__version_info__ < (0, 11) else 2
    assert (len(folded.splitlines()), len(whole.splitlines())) == (13, 12 + 450 * per_sum)
    kept = jm.jit(lambda x: (jm.full_to_shard(x, P()), x.sum()), mesh=jm.make_mesh((2, 4)))
    for stage in (kept.trace(jnp.ones(8)), kept.lower(jnp.ones(8))):
        wheres = [s.where for s in jm.visualize(stage).flow.steps]
        assert wheres[-2:] == ["replicated", "host"]
    big = f.lower(jnp.ones((4, 8)))._repr_html_()
    assert "the first 400 of" in big
    parse_html(big)


# --- errors ----------------------------------------------------------------------------------------------------------


def wrong() -> Iterator[tuple[str, Callable[[], Any], type[Exception], str]]:
    mesh = jm.make_mesh((2, 4))
    yield "long spec", lambda: jm.visualize((8,), P("y", "x"), mesh=mesh), jm.SpecError, "rank 1"
    yield (
        "no sharding",
        lambda: jm.visualize(jax.ShapeDtypeStruct((8,), jnp.int8)),
        jm.ArgumentTypeError,
        "without a shar",
    )
    yield "many", lambda: jm.visualize((8,), P(), mesh=abstract([65, 64])), jm.UnsupportedError, "4096 devices.*4160"
    yield "huge", lambda: jm.visualize((2**40, 2**40), P(), mesh=mesh), jm.VerifyError, "at most"
    yield "dtype", lambda: jm.visualize((8,), P(), mesh=mesh, dtype="no"), jm.ArgumentTypeError, "'no'"
    for wrong_dtype in (object, "U8", "datetime64[s]"):
        yield (
            f"dtype {wrong_dtype}",
            lambda d=wrong_dtype: jm.visualize((8,), P(), mesh=mesh, dtype=d),
            jm.ArgumentTypeError,
            "such as jnp.float32",
        )
    sharding = NamedSharding(mesh, P("y"))
    yield "sharding", lambda: jm.visualize(sharding), jm.ArgumentTypeError, "sharding.spec, mesh=sharding.mesh"
    yield "color", lambda: jm.visualize(mesh).show(color=3), jm.ArgumentTypeError, "got 3"
    trace = jax.jit(lambda x: jm.visualize(x))
    yield "tracer", lambda: trace(jnp.ones(3)), jm.ArgumentTypeError, "value of a trace"


@pytest.mark.parametrize("row", list(wrong()), ids=lambda row: row[0])
def test_errors_are_named(row: tuple[str, Callable[[], Any], type[Exception], str]) -> None:
    _, call, error, words = row
    with pytest.raises(error, match=words):
        call()
