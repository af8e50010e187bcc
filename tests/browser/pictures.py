"""Pictures of a page, part by part, kept small and compared so that another font passes and damage does not.

A page is cut into its parts: the header, every section, the footer. Each is compared on its own, so that a
line more in one part moves nothing in the next. Of a part are compared

* its place: the same parts in the same order, none over another;
* its height, within `HEIGHT`;
* where the ink is: the greys of blocks of twice `BLOCK` pixels, their mean difference within `INK` times
  the contrast of the kept ones;
* how much ink there is: the mean distance of its points from the grey of the paper, within `AMOUNT`;
* its words: the ink within the extent of its own text, for every column of a table, the axes and the labels
  of every drawing and every other kind of text; within `WORDS`, and none of them gone;
* its drawings: the ink of each outside its words, so that no font changes it; within `DRAWN`, and none gone;
* its colours: how much colour of each hue it holds, the share of its area times its saturation, which moving
  does not change; each hue within `COLOUR` of what the kept part holds of it, or of `COLOUR_FLOOR`.

A kept picture is small and has few colours: it is for the eye. What is compared was measured before it was
shrunk, and lies in the file's text chunk, so that both are always of the same page.

How the tolerances were found: `test_another_font_passes` draws the pages in a serif and in another sans-serif
font, with wider letters, and larger. The largest differences seen over all kept pictures stand beside the
numbers below. What must fail stands in `test_damage_fails`.
"""

from __future__ import annotations

import io
import itertools
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.browser import devtools

SHRINK = 5  # the kept pictures are this much smaller, on each side
COLOURS = (32, 20, 12)  # of their palette: the first with which the file is small
LARGEST = 40_000  # bytes of a kept picture
BLOCK = 64
HUES = 12
HEIGHT = 0.3  # seen 0.17: findings of the comparison, another sans-serif
INK = 1.2  # seen 0.89: findings of the narrow comparison, another sans-serif; inverted: 70
AMOUNT = 0.35  # seen 0.19: the header, another sans-serif; a table without its text has 0.4 to 0.6
COLOUR = 0.4  # seen 0.34: the links of the printed header, larger type
COLOUR_FLOOR = 0.002
WORDS = 0.4  # seen 0.24: the Tiles column, a serif; a column without its text has nothing left
DRAWN = 0.06  # seen 0.02: curves on a telephone, another sans-serif; a curve without its line lacks 0.1
DRAWN_FLOOR = 0.5  # of 255 greys: a drawing with less ink is judged as if it had this much

#: Name, top and height of every part, in pixels of the page.
PARTS = """[...document.querySelectorAll("body > header, main > section, body > footer")].map(one => {
  const box = one.getBoundingClientRect();
  return [one.getAttribute("aria-labelledby") || one.tagName.toLowerCase(), box.top + scrollY, box.height];
})"""


#: Of a part, by its number: [name, left, top, width, height] of every text and of every drawing 100 high, in
#: pixels of the page. A text belongs to a kind: "2.3" is column 3 of the part's table 2, "0 axis" and
#: "0 label" are texts of its drawing 0. What a container cuts has no width; what is folded is not there.
PIECES = """(at => {
  const part = [...document.querySelectorAll("body > header, main > section, body > footer")][at];
  const tables = [...part.querySelectorAll("table")], words = [], drawings = [];
  const seen = one => one.checkVisibility() && one.getClientRects().length && !one.closest(".vh, .skip");
  const outer = one => !one.parentElement.closest("svg");
  const svgs = [...part.querySelectorAll("svg")].filter(one => seen(one) && outer(one));
  const place = (one, box) => {
    const frame = one.closest(".scroll");
    if (!frame) return [box.left + scrollX, box.top + scrollY, box.width, box.height];
    const edge = frame.getBoundingClientRect();
    const whole = box.left >= edge.left - 1 && box.right <= edge.right + 1
      && box.top >= edge.top - 1 && box.bottom <= edge.bottom + 1;
    return [box.left + scrollX, box.top + scrollY, whole ? box.width : 0, box.height];
  };
  const kinds = "h1, h2, h3, th, td, p, li, dt, dd, pre, summary, text, figcaption";
  for (const one of part.querySelectorAll(kinds)) {
    if (!seen(one) || one.querySelector("p, li, dd, table")) continue;
    const svg = one.ownerSVGElement && svgs.indexOf(svgs.find(other => other.contains(one)));
    const table = one.closest("table");
    const name = svg !== null && svg !== undefined ? svg + (one.matches(".ax") ? " axis" : " label")
      : table && one.cellIndex !== undefined ? tables.indexOf(table) + "." + one.cellIndex : one.localName;
    const lines = [], range = document.createRange();
    const walk = document.createTreeWalker(one, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
      range.selectNodeContents(walk.currentNode);
      if (seen(walk.currentNode.parentElement)) lines.push(...range.getClientRects());
    }
    words.push(...lines.filter(box => box.width > 1).map(box => [name, ...place(one, box)]));
  }
  svgs.forEach((one, n) => {
    const box = one.getBoundingClientRect();
    if (box.height >= 100) drawings.push([String(n), ...place(one, box)]);
  });
  return [words, drawings];
})"""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a page: its name, its place, and what of its picture is compared."""

    name: str
    top: float
    height: float
    grid: tuple[int, int]  # blocks across and down
    ink: list[int]  # the grey of every block, row by row
    amount: float
    colours: list[float]
    words: dict[str, float | None]  # of each kind of text: the ink within it; None where it is cut off
    drawings: dict[str, float | None]  # of each drawing: its ink outside its words


def take(page: devtools.Page) -> tuple[Image.Image, list[Part]]:
    """Picture every part of an open page; return the small picture of all and what was measured."""
    parts, pictures = zip(*(_part(page, at, *place) for at, place in enumerate(page.run(PARTS))), strict=True)
    whole = Image.new("RGB", (max(one.width for one in pictures), sum(one.height for one in pictures)))
    top = 0
    for one in pictures:
        whole.paste(one, (0, top))
        top += one.height
    return whole, list(parts)


def look(page: devtools.Page, name: str, others: list[Part]) -> list[Part]:
    """Picture one part of an open page; of the ``others``, as they were, only the places are measured."""
    known = {part.name: part for part in others}
    return [
        _part(page, at, *place)[0]
        if place[0] == name
        else replace(known[place[0]], top=round(place[1]), height=round(place[2]))
        for at, place in enumerate(page.run(PARTS))
    ]


def _part(page: devtools.Page, at: int, name: str, top: float, height: float) -> tuple[Part, Image.Image]:
    width = page.run("document.documentElement.clientWidth")
    image = Image.open(io.BytesIO(page.picture(0, top, width, max(1, height)))).convert("RGB")
    grid = (max(1, round(image.width / BLOCK)), max(1, round(image.height / BLOCK)))
    ink = image.convert("L").resize(grid, Image.Resampling.BOX).tobytes()
    grey = np.asarray(image.convert("L"), dtype=np.float64)
    pieces = _pieces(grey, top, *page.run(f"{PIECES}({at})"))
    amount, colours = _amount(image), _colours(image)
    part = Part(name, round(top), round(height), grid, list(ink), amount, colours, *pieces)
    size = (-(-image.width // SHRINK), -(-image.height // SHRINK))
    return part, image.resize(size, Image.Resampling.BOX)


def save(picture: Image.Image, parts: list[Part], path: Path) -> None:
    """Write the picture with a palette, for the eye, and in it what was measured before, for the test."""
    said = PngInfo()
    said.add_text("parts", json.dumps([asdict(part) for part in parts], separators=(",", ":")), zip=True)
    for colours in COLOURS:
        small = picture.quantize(colours, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        small.save(path, optimize=True, pnginfo=said)
        if path.stat().st_size < LARGEST:
            return


def load(path: Path) -> list[Part]:
    """Read what was measured of a kept picture."""
    with Image.open(path) as file:
        rows: list[dict[str, Any]] = json.loads(file.info["parts"])
    return [Part(**{**row, "grid": tuple(row["grid"])}) for row in rows]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a part is from the kept one: each 1.0 at its tolerance."""

    height: float
    ink: float
    amount: float
    colour: float
    hue: int


def difference(kept: Part, now: Part) -> Difference:
    """Measure a part against the kept one."""
    height = abs(now.height - kept.height) / max(kept.height, 2 * BLOCK) / HEIGHT
    grid = (max(1, kept.grid[0] // 2), max(1, kept.grid[1] // 2))  # columns of tables move with the font
    before, after = _grey(kept, grid), _grey(now, grid)
    contrast = float(np.abs(before - np.median(before)).mean())
    ink = float(np.abs(before - after).mean()) / max(contrast, 2.0) / INK
    hues, then = np.asarray(kept.colours), np.asarray(now.colours)
    off = np.abs(hues - then) / np.maximum(hues, COLOUR_FLOOR) / COLOUR
    amount = abs(now.amount / kept.amount - 1) / AMOUNT
    return Difference(height, ink, amount, float(off.max()), int(off.argmax()))


def faults(kept: list[Part], now: list[Part]) -> list[str]:
    """Say what is wrong with a page's pictures, a line each; empty if they pass."""
    # the rest is not shown
    kept, now = ([part for part in every if part.height > 1] for every in (kept, now))
    names, found = [part.name for part in kept], [part.name for part in now]
    said = []
    if names != found:
        said.append(f"parts are {', '.join(found)}; kept: {', '.join(names)}")
    said += [
        f"{below.name} begins {above.top + above.height - below.top:.0f} px above the end of {above.name}"
        for above, below in itertools.pairwise(now)
        if below.top < above.top + above.height - 1
    ]
    by_name = {part.name: part for part in now}
    for part in kept:
        if part.name not in by_name:
            continue
        other = by_name[part.name]
        off = difference(part, other)
        if off.height > 1:
            said.append(f"{part.name} is {other.height:.0f} px high; kept: {part.height:.0f}")
        if off.ink > 1:
            said.append(f"{part.name} looks otherwise: {off.ink:.2f} of the tolerance")
        if off.amount > 1:
            said.append(f"{part.name} has {other.amount / part.amount:.2f} times the ink of the kept one")
        if off.colour > 1:
            hue = f"{360 * off.hue // HUES}°"
            said.append(f"{part.name} has other colours at hue {hue}: {off.colour:.2f} of the tolerance")
        for piece, far in unlike(part, other):
            if far > 1:
                what = "gone" if np.isinf(far) else f"look otherwise: {far:.2f} of the tolerance"
                said.append(f"{part.name}: {piece} {what}")
    return said


def alike(kept: Image.Image, now: Image.Image) -> bool:
    """Whether two pictures of one size show about the same: their ink where it was, and as much of it."""
    grid = (max(1, kept.width // BLOCK), max(1, kept.height // BLOCK))
    before, after = (
        np.asarray(one.convert("L").resize(grid, Image.Resampling.BOX), dtype=np.float64)
        for one in (kept, now)
    )
    contrast = float(np.abs(before - np.median(before)).mean())
    off = float(np.abs(before - after).mean()) / max(contrast, 2.0)
    return off < INK and abs(_amount(now) / _amount(kept) - 1) < AMOUNT


_Boxes = list[tuple[str, float, float, float, float]]


def _pieces(
    grey: np.ndarray[Any, np.dtype[np.float64]], top: float, words: _Boxes, drawings: _Boxes
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """The ink of the texts within their extents, by kind, and of the drawings outside their texts."""
    drawn: dict[str, float | None] = {}
    said: dict[str, list[tuple[float, int]]] = {}
    blank = np.zeros(grey.shape, dtype=bool)
    for name, left, above, width, height in words:
        y, x = max(0, int(above - top)), max(0, int(left))
        inside = grey[y : int(above - top + height) + 1, x : int(left + width) + 1] if width else grey[:0]
        said.setdefault(name, [])
        if inside.size:
            said[name].append((float(np.abs(inside - np.median(inside)).sum()), inside.size))
            blank[max(0, y - 2) : y + int(height) + 4, max(0, x - 3) : x + int(width) + 5] = True
    for name, left, above, width, height in drawings:
        y, x = max(0, int(above - top)), max(0, int(left))
        area = (slice(y, int(above - top + height) + 1), slice(x, int(left + width) + 1))
        seen = grey[area][~blank[area]] if width and height else grey[:0]
        drawn[name] = (
            round(float(np.abs(seen - np.median(grey[area])).mean()), 2) if seen.size > 200 else None
        )
    dense = {
        name: round(sum(ink for ink, _ in all_of) / sum(size for _, size in all_of), 2) if all_of else None
        for name, all_of in said.items()
    }
    return dense, drawn


def unlike(kept: Part, now: Part) -> list[tuple[str, float]]:
    """The words and drawings of a part with how far each is from the kept ones: 1.0 at the tolerance."""
    found = []
    for kind, most, floor in (("words", WORDS, 1.0), ("drawings", DRAWN, DRAWN_FLOOR)):
        before, after = getattr(kept, kind), getattr(now, kind)
        for name, ink in before.items():
            if name not in after:
                found.append((f"{kind} {name}", np.inf))
            elif ink is not None and after[name] is not None:
                found.append((f"{kind} {name}", abs(after[name] - ink) / max(ink, floor) / most))
    return found


def _grey(part: Part, grid: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The blocks, stretched to another number of them where the height differs."""
    grey = Image.frombytes("L", part.grid, bytes(part.ink)).resize(grid, Image.Resampling.BOX)
    return np.asarray(grey, dtype=np.float64)


def _amount(image: Image.Image) -> float:
    """How far points are from the grey of the paper, on average."""
    grey = np.asarray(image.convert("L"), dtype=np.float64)
    return round(max(0.01, float(np.abs(grey - np.median(grey)).mean())), 4)


def _colours(image: Image.Image) -> list[float]:
    """The share of the picture's area of each hue, every point counted by its saturation."""
    rgb = np.asarray(image)
    chroma = (rgb.max(axis=2) - rgb.min(axis=2)) / 255
    hue = np.asarray(image.convert("HSV"))[:, :, 0].astype(int)
    total = np.bincount((hue * HUES // 256).ravel(), weights=chroma.ravel(), minlength=HUES)
    return [round(float(share), 6) for share in total / chroma.size]
