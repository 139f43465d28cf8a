"""What B gets of its own."""

from __future__ import annotations

import pytest
import yaml

from infercanary.ab import conditions
from infercanary.ab.conditions import Conditions
from infercanary.ab.variant import Variant, differing, words
from infercanary.command.settings import UsageError


def test_b_has_what_a_has_and_its_own(tmp_path):
    same = Conditions(cpus=2.0, memory=1 << 30, environment={"OMP_NUM_THREADS": "1", "MODEL": "resnet"})
    assert Variant().conditions(same) == same
    own = Variant(("OMP_NUM_THREADS=2",), 0.5, "512m", "python serve.py --workers 2").conditions(same)
    assert own == Conditions(
        cpus=0.5,
        memory=512 << 20,
        environment={"OMP_NUM_THREADS": "2", "MODEL": "resnet"},
        command=("python", "serve.py", "--workers", "2"),
    )
    path = tmp_path / "compiled.yaml"
    path.write_text("canaries: {c: {target: torch, options: {mode: compile, autocast: bfloat16}}}\n")
    probes = Conditions(settings=conditions.document({"canaries": {"c": {"target": "torch"}}}))
    compiled = Variant(config=str(path)).conditions(probes)
    assert yaml.safe_load(compiled.settings)["canaries"]["c"]["options"]["mode"] == "compile"
    with pytest.raises(UsageError, match="--config-b: belongs to --config"):
        Variant(config=str(path)).conditions(same)


def test_settings_that_differ_are_named_as_they_were_given(monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    a, b = differing(
        Variant(("OMP_NUM_THREADS=1", "MODEL=resnet"), 1.0, "2g"),
        Variant(("OMP_NUM_THREADS=2", "TOKEN", "MODEL=resnet"), 0.5, command="serve --workers 2"),
    )
    assert a == {"OMP_NUM_THREADS": "1", "--cpus": "1"}
    assert words(b) == "OMP_NUM_THREADS=2, TOKEN=(as here), --cpus 0.5, --command serve --workers 2"
    assert differing(Variant(("A=1",), 1.0), Variant(("A=1",), 1.0)) == ({}, {})
    assert words({}) == ""
    assert len(words({"LONG": "x" * 500})) <= 60
