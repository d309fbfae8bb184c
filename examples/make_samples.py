"""Write the sample documents of this folder: `python examples/make_samples.py [folder]`.

The same bytes come out on every machine: no compressor and no font rasteriser is used whose next version may answer differently.
The words are our own, and the survey is invented.
"""

import sys
import textwrap
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).parent
LINE_CHARACTERS = 88  # of Helvetica 11 pt, on average, in a line of 468 pt
PAGE_WIDTH_PT, PAGE_HEIGHT_PT = 612, 792
SCAN_SCALE = 2  # each pixel of Pillow's small built-in letters becomes four

NOTE = """\
LENDING LIST - SKY METERS

Please write down who has which meter,
and bring it back with a full battery.

Meter 1   school roof     back by Friday
Meter 2   river path      with the anglers
Meter 3   allotments      battery replaced
Meter 4   broken lens     do not lend out

Readings go on the sheet by the kettle.
A cloudy night is a reading too: write
the time and the word CLOUD.

The key to the shed hangs where it
always hangs."""

NOTES = {
    "01-first-meeting": """\
First meeting
Fourteen people came to the school hall on a wet Thursday. It was agreed to measure the night sky for one year, to share the \
four meters fairly, and to meet on the first Sunday of each month. Rosa keeps the list, Tom keeps the key.""",
    "02-meters": """\
The meters arrive
The four sky meters came by post in one box. One had a loose lens and went back the same day. The others were tested in the \
cellar of the mill, which is the darkest room that anybody could think of.""",
    "03-invoice": """\
Invoice from the ironmonger
For one ladder, second hand, and six metres of rope: 48 euros. Please pay by the end of February. The ladder may be returned \
within a year if it is not painted.""",
    "04-river-path": """\
River path, March
The anglers took twelve readings on five nights. Fog spoiled two of them. The new lamp at the weir can be seen from the second \
bridge, which nobody had noticed before.""",
    "05-school": """\
The school joins in
The older pupils drew the stars that they could count through a cardboard tube. The average was nine in the town and forty on \
the moor. Two drawings hang in the library now.""",
    "06-allotments": """\
Allotments, May
The allotment holders found that their own shed lamp was the brightest thing for a hundred metres. It has a switch now. A \
hedgehog was seen on three nights.""",
    "07-letter": """\
Letter to the riding hall
Dear neighbours, the floodlight on your gable lights our bedrooms and the clouds. Turned down by a hand's breadth it would light \
your yard as well as before. We would gladly come with a ladder.""",
    "08-answer": """\
The riding hall answers
The owner was surprised and friendly. The lamp was turned on a Saturday afternoon and the horses did not mind. The reading at \
the chapel rose by a third of a magnitude the same night.""",
    "09-batteries": """\
Batteries
Two meters gave readings that were too bright in the cold. It was the batteries. They are now carried in a trouser pocket until \
the last minute, and changed every second month.""",
    "10-last-meeting": """\
Last meeting
Thirty-one people came. The year's readings fit on one page. It was decided to go on with two meters, to lend two to the next \
valley, and to keep the ladder.""",
}
BROKEN = "06-allotments"  # it is cut in the middle, as by a copy that was broken off


def main(folder: Path) -> None:
    """Write all samples into a folder."""
    (folder / "notes").mkdir(exist_ok=True)
    for name, note in NOTES.items():
        data = text_pdf([note])
        (folder / "notes" / f"{name}.pdf").write_bytes(data[:100] if name == BROKEN else data)
    text = (HERE / "night-sky.txt").read_text(encoding="utf-8")
    (folder / "night-sky-survey.pdf").write_bytes(text_pdf(text.split("\n\f\n")))
    (folder / "scanned-note.pdf").write_bytes(scan_pdf(NOTE))


def text_pdf(pages: list[str]) -> bytes:
    """A PDF with a text layer: one page for each text, whose first line is its heading."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Count %d /Kids [%s] >>" % (len(pages), b" ".join(b"%d 0 R" % (5 + 2 * at) for at in range(len(pages)))),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold /Encoding /WinAnsiEncoding >>",
    ]
    for number, page in enumerate(pages, 1):
        heading, _, body = page.strip().partition("\n")
        lines = ["BT", "/F2 16 Tf", "72 706 Td", f"({escaped(heading)}) Tj", "/F1 11 Tf", "15 TL", "0 -30 Td"]
        for paragraph in body.strip().split("\n\n"):
            for line in textwrap.wrap(paragraph, LINE_CHARACTERS, break_on_hyphens=False):
                lines += [f"({escaped(line)}) Tj", "T*"]
            lines.append("T*")
        lines += ["ET", "BT", "/F1 9 Tf", f"300 40 Td ({number}) Tj", "ET"]
        resources = "/Resources << /Font << /F1 3 0 R /F2 4 0 R >> >>"
        box = f"/MediaBox [0 0 {PAGE_WIDTH_PT} {PAGE_HEIGHT_PT}]"
        objects.append(f"<< /Type /Page /Parent 2 0 R {box} {resources} /Contents {len(objects) + 2} 0 R >>".encode())
        objects.append(stream(b"", "\n".join(lines).encode("cp1252")))
    return pdf(objects)


def scan_pdf(note: str) -> bytes:
    """A PDF of one page that is only a picture, as a scanner makes it."""
    small = Image.new("1", (PAGE_WIDTH_PT, PAGE_HEIGHT_PT), 1)
    drawing = ImageDraw.Draw(small)
    # The old bitmap letters: the newer default font is drawn by FreeType, whose versions differ in single pixels
    drawing.multiline_text((150, 120), note, fill=0, font=ImageFont.load_default_imagefont(), spacing=12)
    drawing.rectangle((130, 95, 480, 560), outline=0)
    scan = small.resize((PAGE_WIDTH_PT * SCAN_SCALE, PAGE_HEIGHT_PT * SCAN_SCALE), Image.Resampling.NEAREST)
    picture = (
        b"/Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace /DeviceGray /BitsPerComponent 1 /Filter /RunLengthDecode "
        % scan.size
    )
    place = b"q %d 0 0 %d 0 0 cm /Scan Do Q" % (PAGE_WIDTH_PT, PAGE_HEIGHT_PT)
    return pdf(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>",
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %d %d] /Resources << /XObject << /Scan 5 0 R >> >> /Contents 4 0 R >>"
            % (PAGE_WIDTH_PT, PAGE_HEIGHT_PT),
            stream(b"", place),
            stream(picture, run_lengths(scan.tobytes())),
        ]
    )


def escaped(text: str) -> str:
    """A text as it stands between the brackets of a PDF string."""
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def run_lengths(data: bytes) -> bytes:
    """PDF's RunLengthDecode, written the other way round: a run of 2 to 128 equal bytes is its length and the byte."""
    out, at = bytearray(), 0
    while at < len(data):
        run = 1
        while run < 128 and data[at + run : at + run + 1] == data[at : at + 1]:
            run += 1
        out += bytes((257 - run if run > 1 else 0, data[at]))
        at += run
    return bytes(out + b"\x80")


def stream(entries: bytes, data: bytes) -> bytes:
    """A stream object."""
    return b"<< %s/Length %d >>\nstream\n%s\nendstream" % (entries, len(data), data)


def pdf(objects: list[bytes]) -> bytes:
    """A PDF file of these objects, numbered from 1, of which the first is the catalogue."""
    out = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    places = []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    return bytes(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
