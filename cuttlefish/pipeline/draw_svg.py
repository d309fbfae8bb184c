"""Draws a checked pipeline as SVG, with a layered layout of our own: no program is called.

Boxes stand in ranks, each below all that leads to it. Between two ranks of boxes is one of labels: a label has a place of its own,
so that no two of them overlap, and an arrow that passes ranks has a bend in each. Sweeps up and down sort every rank by where its
neighbours are, and then move it as near to them as its order allows.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from cuttlefish.pipeline.draw import Arrow, Drawing, Records, outline
from cuttlefish.pipeline.graph import Graph

__all__ = ["draw_svg"]

CHAR = 7.3  # the width of a monospaced character at 12 pixels, a little generously
LINE = 17.0
PAD = 10.0
GAP = 22.0  # between neighbours in a rank
RANK_GAP = 20.0
MARGIN = 24.0
LONGEST = 60  # ranks that an arrow bends through; a longer one is drawn straight, as bends cost memory
SWEEPS = 8


@dataclass(slots=True)
class _Spot:
    """What has a place in a rank: a box, a label, or the bend of an arrow."""

    rank: int
    width: float
    height: float
    x: float = 0.0
    """Of its middle."""
    above: list["_Spot"] = field(default_factory=list)
    below: list["_Spot"] = field(default_factory=list)


def draw_svg(graph: Graph, records: Records | None = None) -> str:
    """The pipeline as an SVG picture."""
    drawing = outline(graph, records)
    ranks = _ranks(drawing)
    boxes = [
        _Spot(rank, _width((box.title, *box.lines)) + 2 * PAD, LINE * (1 + len(box.lines)) + PAD)
        for box, rank in zip(drawing.boxes, ranks, strict=True)
    ]
    ways = [_way(boxes[arrow.source], boxes[arrow.target], arrow) for arrow in drawing.arrows]
    used = [place for place in range(len(boxes)) if boxes[place].above or boxes[place].below or len(boxes) == 1]
    rows: list[list[_Spot]] = [[] for _ in range(max(ranks) + 1)]
    for place in used:
        rows[boxes[place].rank].append(boxes[place])
    for way in ways:
        for spot in way[1:-1]:
            rows[spot.rank].append(spot)
    rows = [row for row in rows if row]
    _sort_rows(rows)
    _place_rows(rows)
    tops, heights = _tops(rows)
    width, height = _fit(drawing, rows), max(tops[row[0].rank] + heights[row[0].rank] for row in rows) + MARGIN

    size = f"{width:.0f} {height:.0f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {size}">',
        f"<title>{escape(drawing.title)}</title>",
        _STYLE,
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text class="name" x="{MARGIN:.0f}" y="{MARGIN:.0f}">{escape(drawing.title)}</text>',
    ]
    parts += [_draw_way(way, arrow, tops, heights) for way, arrow in zip(ways, drawing.arrows, strict=True)]
    # Labels lie above all lines, boxes above all else.
    parts += [_draw_label(way[1], arrow, tops, heights) for way, arrow in zip(ways, drawing.arrows, strict=True)]
    parts += [_draw_box(boxes[place], drawing, place, tops) for place in used]
    return "\n".join([*parts, "</svg>"]) + "\n"


_STYLE = """\
<style>
  text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2933; text-anchor: middle }
  .name { font-weight: bold; font-size: 14px; text-anchor: start }
  .title { font-weight: bold }
  .more { fill: #52606d }
  .label { fill: #334e68 }
  .line { fill: none; stroke: #829ab1; stroke-width: 1.4 }
  .order { stroke-dasharray: 5 4 }
  .box { fill: #f0f4f8; stroke: #486581; stroke-width: 1.2 }
  .end { fill: #ffffff; stroke: none }
  .finished { fill: #e3f9e5; stroke: #2f8132 }
  .failed { fill: #ffe3e3; stroke: #b00020; stroke-width: 2.4 }
  .skipped { fill: #ffffff; stroke-dasharray: 5 4 }
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
  <path d="M0 0 L8 4 L0 8 z" fill="#829ab1"/></marker></defs>"""


def _ranks(drawing: Drawing) -> list[int]:
    """The rank of each box, all even: the odd ones between are for labels."""
    ranks = [0] * len(drawing.boxes)
    for arrow in sorted(drawing.arrows, key=lambda arrow: arrow.target):
        ranks[arrow.target] = max(ranks[arrow.target], ranks[arrow.source] + 2)
    first_below: dict[int, int] = {}
    for arrow in drawing.arrows:
        first_below[arrow.source] = min(first_below.get(arrow.source, ranks[arrow.target]), ranks[arrow.target])
    led_to = {arrow.target for arrow in drawing.arrows}
    return [rank if place in led_to else first_below.get(place, 2) - 2 for place, rank in enumerate(ranks)]


def _way(source: _Spot, target: _Spot, arrow: Arrow) -> list[_Spot]:
    """The spots that an arrow passes: its label behind the source, then a bend in each rank before the target."""
    way = [source, _Spot(source.rank + 1, _width((arrow.short_label,)) + PAD, LINE)]
    if target.rank - source.rank <= LONGEST:
        way += [_Spot(rank, 2.0, 0.0) for rank in range(source.rank + 2, target.rank)]
    way.append(target)
    for one, other in pairwise(way):
        one.below.append(other)
        other.above.append(one)
    return way


def _sort_rows(rows: list[list[_Spot]]) -> None:
    """Sort each rank by the mean place of its neighbours, so that few arrows cross."""
    for row in rows:
        _spread(row, [0.0] * len(row))
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            wishes = {id(spot): _mean(spot.above if down else spot.below, spot.x) for spot in row}
            row.sort(key=lambda spot: wishes[id(spot)])
            _spread(row, [wishes[id(spot)] for spot in row])


def _place_rows(rows: list[list[_Spot]]) -> None:
    """Move each rank as near to its neighbours as its order allows."""
    for sweep in range(2 * SWEEPS):
        down, last = sweep % 2 == 0, sweep >= 2 * SWEEPS - 6
        for row in rows if down else reversed(rows):
            neighbours = [[*spot.above, *spot.below] if last else spot.above if down else spot.below for spot in row]
            _spread(row, [_mean(spots, spot.x) for spots, spot in zip(neighbours, row, strict=True)])


def _spread(row: list[_Spot], wishes: Sequence[float]) -> None:
    """Give each spot the place nearest to its wish, keeping the order and the gaps: least squares, by pooling neighbours."""
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + GAP)
    pools: list[tuple[float, int]] = []  # the sum of wishes without offsets, and how many
    for wish, offset in zip(wishes, offsets, strict=True):
        total, count = wish - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before, more = pools.pop()
            total, count = total + before, count + more
        pools.append((total, count))
    places = (total / count for total, count in pools for _ in range(count))
    for spot, place, offset in zip(row, places, offsets, strict=True):
        spot.x = place + offset


def _mean(spots: Sequence[_Spot], otherwise: float) -> float:
    return sum(spot.x for spot in spots) / len(spots) if spots else otherwise


def _tops(rows: list[list[_Spot]]) -> tuple[dict[int, float], dict[int, float]]:
    """Where each rank begins, and how high it is."""
    tops, heights, at = {}, {}, MARGIN + LINE
    for row in rows:
        rank = row[0].rank
        tops[rank], heights[rank] = at, max(spot.height for spot in row)
        at += heights[rank] + RANK_GAP
    return tops, heights


def _fit(drawing: Drawing, rows: list[list[_Spot]]) -> float:
    """Move everything to the left margin; return the picture's width."""
    left = min(row[0].x - row[0].width / 2 for row in rows) - MARGIN
    for row in rows:
        for spot in row:
            spot.x -= left
    title = _width((drawing.title,)) * 14 / 12 + 2 * MARGIN
    return max(title, max(row[-1].x + row[-1].width / 2 for row in rows) + MARGIN)


def _draw_way(way: Sequence[_Spot], arrow: Arrow, tops: dict[int, float], heights: dict[int, float]) -> str:
    start = way[0]
    x, y = start.x, tops[start.rank] + start.height
    path = f"M{x:.1f} {y:.1f}"
    for spot in way[1:]:
        top = tops[spot.rank]
        middle = (y + top) / 2
        path += f" C{x:.1f} {middle:.1f} {spot.x:.1f} {middle:.1f} {spot.x:.1f} {top:.1f}"
        x, y = spot.x, top
        if spot is not way[-1]:
            y += heights[spot.rank]
            path += f" V{y:.1f}"
    return f'<path class="line{" order" if arrow.is_order else ""}" d="{path}" marker-end="url(#head)"/>'


def _draw_label(spot: _Spot, arrow: Arrow, tops: dict[int, float], heights: dict[int, float]) -> str:
    top = tops[spot.rank] + (heights[spot.rank] - spot.height) / 2
    return (
        f'<g><title>{escape(arrow.label)}</title><rect x="{spot.x - spot.width / 2:.1f}" y="{top:.1f}" width="{spot.width:.1f}" '
        f'height="{spot.height:.1f}" fill="#ffffff"/>'
        f'<text class="label" x="{spot.x:.1f}" y="{top + 12.5:.1f}">{escape(arrow.short_label)}</text></g>'
    )


def _draw_box(spot: _Spot, drawing: Drawing, place: int, tops: dict[int, float]) -> str:
    box, top, left = drawing.boxes[place], tops[spot.rank], spot.x - spot.width / 2
    kind = box.status if box.status in ("end", "finished", "failed", "skipped") else ""
    parts = [
        f'<g><rect class="box {kind}" x="{left:.1f}" y="{top:.1f}" width="{spot.width:.1f}" height="{spot.height:.1f}" rx="6"/>',
        f'<text class="title" x="{spot.x:.1f}" y="{top + 17:.1f}">{escape(box.title)}</text>',
    ]
    for number, line in enumerate(box.lines, 1):
        parts.append(f'<text class="more" x="{spot.x:.1f}" y="{top + 17 + number * LINE:.1f}">{escape(line)}</text>')
    return "".join([*parts, "</g>"])


def _width(texts: Sequence[str]) -> float:
    """The width of the longest line. Wide characters, such as Chinese ones, count twice."""
    return CHAR * max(sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text) for text in texts)
