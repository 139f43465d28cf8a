"""The cause that a result names in a notebook."""

import dataclasses

import infercanary


def test_what_was_measured_here_is_code_and_what_probes_wrote_is_an_image(
    journal,
):
    old = infercanary.read(journal("old", (0.020,)))
    new = infercanary.read(journal("new", (0.030,)))
    assert "): image; " in old.compare(new, restart_sd=0.0).sentence
    assert "): code; " in old.compare(dataclasses.replace(new, process=1), restart_sd=0.0).sentence
