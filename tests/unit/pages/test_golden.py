"""Output of each renderer for one document. ``python -m tests.unit.pages.test_golden`` rewrites the files."""

import pytest

from infercanary.pages.html import STYLE, render_page
from infercanary.pages.junit import render_junit
from infercanary.pages.markdown import render_markdown
from infercanary.pages.table_csv import render_csv
from infercanary.render.document import Document
from tests.documents import document
from tests.programs import GOLDEN

FOLDER = GOLDEN / "pages"
SAMPLE = document("resnet18")
RENDERED = {
    "report.html": render_page("old → new", [SAMPLE], ["a note"], ["made by hand"]).replace(STYLE, ""),
    "comment.md": render_markdown([SAMPLE], ["a note"]),
    "junit.xml": render_junit(
        [
            SAMPLE,
            Document(verdict="inconclusive", sentence="inconclusive: 3 runs", exit_code=3),
            Document(name="<b>", verdict="equivalent", sentence="equivalent within 3 %"),
        ]
    ),
    "runs.csv": "".join(
        render_csv(["canary", "median", "note"], [["resnet18", 0.16, None], ["=b", 2, "a,b"]])
    ),
}


@pytest.mark.parametrize("name", RENDERED)
def test_a_document_looks_as_before(name):
    assert RENDERED[name] == (FOLDER / name).read_bytes().decode()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in RENDERED.items():
        (FOLDER / name).write_bytes(text.encode())
