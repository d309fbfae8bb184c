"""Small odd files, each with what must come of it: the test of everything that reads files.

`ODD_FILES` are all of them. They are made when they are first asked for, by `writer` (the one PDF writer of the tests) and
Pillow; nothing comes from elsewhere. `mutate` damages them further. `observe` runs one through a host, as a block sees it.
"""

from odd import documents, images, others, pages
from odd.expected import OddFile

__all__ = ["ODD_FILES"]

ODD_FILES: dict[str, OddFile] = {file.name: file for file in (*documents.FILES, *pages.FILES, *images.FILES, *others.FILES)}

assert len(ODD_FILES) == sum(len(room.FILES) for room in (documents, pages, images, others)), "two files have one name"
