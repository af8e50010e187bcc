"""Pictures of a page, part by part, kept small and compared so that another font passes and damage does not.

A page is cut into its parts: the header, every section, the footer. Each is compared on its own, so that a
line more in one part moves nothing in the next. Of a part are compared

* its place: the same parts in the same order, none over another;
* its height, within `HEIGHT`;
* where the ink is: the greys of blocks of twice `BLOCK` pixels, their mean difference within `INK` times
  the contrast of the kept ones;
* how much ink there is: the mean distance of its points from the grey of the paper, within `AMOUNT`;
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
from dataclasses import asdict, dataclass
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

#: Name, top and height of every part, in pixels of the page.
PARTS = """[...document.querySelectorAll("body > header, main > section, body > footer")].map(one => {
  const box = one.getBoundingClientRect();
  return [one.getAttribute("aria-labelledby") || one.tagName.toLowerCase(), box.top + scrollY, box.height];
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


def take(page: devtools.Page) -> tuple[Image.Image, list[Part]]:
    """Picture every part of an open page; return the small picture of all and what was measured."""
    width = page.run("document.documentElement.clientWidth")
    parts, pictures = [], []
    for name, top, height in page.run(PARTS):
        data = page.picture(0, top, width, max(1, height))
        image = Image.open(io.BytesIO(data)).convert("RGB")
        grid = (max(1, round(image.width / BLOCK)), max(1, round(image.height / BLOCK)))
        ink = image.convert("L").resize(grid, Image.Resampling.BOX).tobytes()
        parts.append(Part(name, round(top), round(height), grid, list(ink), _amount(image), _colours(image)))
        size = (-(-image.width // SHRINK), -(-image.height // SHRINK))
        pictures.append(image.resize(size, Image.Resampling.BOX))
    whole = Image.new("RGB", (max(one.width for one in pictures), sum(one.height for one in pictures)))
    top = 0
    for one in pictures:
        whole.paste(one, (0, top))
        top += one.height
    return whole, parts


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
    names, found = [part.name for part in kept], [part.name for part in now if part.height > 1]
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
