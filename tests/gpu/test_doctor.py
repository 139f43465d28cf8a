"""The doctor on a real GPU."""

from infercanary.doctor.ability import Machine, checks
from infercanary.doctor.asking import ask
from infercanary.doctor.command import answer_document
from infercanary.render.text import render_text


def test_every_line_is_an_answer_and_the_clocks_agree():
    found = list(ask(checks(), Machine()))
    print("".join(render_text(answer_document(each), 120) for each in found))
    assert not [each for each in found if "the check failed" in each.why or "no answer" in each.why]
    by_name = {(each.section, each.name): each for each in found}
    for name in ("context", "events", "events against the wall clock", "stream priority", "graph capture"):
        assert by_name["CUDA", name].state == "OK", by_name["CUDA", name]
    assert by_name["NVML", "nvmlInit"].state == "OK"
    assert not [each.name for each in found if each.section == "NVML" and each.state == "refused"]
