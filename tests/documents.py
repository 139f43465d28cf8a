"""A result document with every kind of content, for tests of its views."""

from infercanary.render.document import Chart, Document, Fact, Series, Table


def document(text="text", link="https://example.com/compare/a...b"):
    """Return a regressed result.

    Args:
        text: Text for name, sentence, labels, values, cells and notes.
        link: Link of a fact.
    """
    before, after = [0.0575, 0.057, 0.058] * 20, [0.160, 0.159, 0.161] * 20
    sides = (
        Series(f"{text} old", [*before, *[None] * 60], "old"),
        Series(f"{text} new", [*[None] * 60, *after]),
    )
    return Document(
        name=text,
        verdict="regressed",
        sentence=f"regressed +178 % [+116, +259]: image; {text}",
        exit_code=1,
        actions=[text],
        facts=[
            Fact(text, text, link=link),
            Fact("peak memory", 1.25e9, "bytes"),
            Fact("median", 0.16, "s"),
            Fact("missing", None),
        ],
        tables=[Table(text, ("measure", "before", "after", text), [(text, "1", "2", text)])],
        charts=[
            Chart(text, "distributions", sides),
            Chart(text, "points", sides, marks=[60], misses=[3]),
            Chart(
                text, "points", [Series(text, [*before, *after])], levels=[(0, 60, 0.0575), (60, 60, 0.16)]
            ),
        ],
        notes=[text],
        data={"canary": text, "notes": [text], "facts": {text: text}},
    )
