"""The registry of targets, and optional abilities of a target: results, and cost of a look-up."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from fresh import printed

import infercanary.probe.targets
from infercanary.command.settings import UsageError
from infercanary.probe import HostClock, Target
from infercanary.probe.targets import adapt, make, names, parameters, registered, registry
from infercanary.probe.targets.engines.environment import reported

ONE_FILE = """  # by the recipe of 0.1.0: a class without a base
from infercanary.probe import HostClock, Phase
from infercanary.probe.targets import register

@register("newcomer")
class NewcomerTarget:
    clock = HostClock()
    def __init__(self, size: int = 1) -> None:
        self.size = size
    def open(self) -> None: ...
    def run(self, phase: Phase) -> int:
        with phase("compute"):
            return self.size
    def values(self, result: int) -> list[float]:
        return [float(result)]
    def environment(self) -> dict[str, str]:
        return {}
    def close(self) -> None: ...
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder whose files count as files of ``targets/``; the registry is restored afterwards."""
    # First import all files of the package; otherwise their names would be lost with the restored registry.
    names()
    package = infercanary.probe.targets
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(f"{package.__name__}.{path.stem}", None)
        vars(package).pop(path.stem, None)


@pytest.mark.parametrize("file", ["newcomer", "other_name"])
def test_a_new_target_is_one_file(folder, file):
    with pytest.raises(UsageError, match="no target `newcomer`"):
        make("newcomer", {})
    (folder / f"{file}.py").write_text(ONE_FILE)
    assert "newcomer" in names()
    target = make("newcomer", {"size": 3})
    assert target.values(target.clock.measure(target.run)[1]) == [3.0]
    with pytest.raises(UsageError, match="options: unknown key `sise`; did you mean `size`"):
        make("newcomer", {"sise": 3})


IMPORTS = """
import sys
import infercanary.probe.__main__, infercanary.probe.config
from infercanary.probe.targets import names, registered
print(registered("http").__name__, {"kserve", "onnx"} & {name.rpartition(".")[2] for name in sys.modules})
from infercanary.probe import OnnxTarget
print(registered("onnx") is OnnxTarget, hasattr(infercanary.probe, "TensorTarget"))
print({"http", "kserve", "matmul", "onnx", "openai", "tensorrt", "torch"} <= {*names()})
heavy = {"torch", "numpy", "onnxruntime", "tensorrt", "aiohttp", "docker", "prometheus_client", "infercanary.exporter"}
print(heavy & sys.modules.keys())
"""


def test_one_target_does_not_pay_for_the_others_and_names_are_known_without_any_engine():
    assert printed(IMPORTS, PYTHONWARNINGS="error") == "HttpTarget set()\nTrue False\nTrue\nset()"


PAGES = Path(__file__).parents[3] / "docs/targets"


@pytest.mark.parametrize("name", sorted(page.stem for page in PAGES.glob("*.md") if page.stem in names()))
def test_the_page_of_a_target_has_its_options_and_its_settings_are_right(name):
    text = (PAGES / f"{name}.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", text.partition("| option |")[2].partition("\n\n")[0], re.MULTILINE)
    factory = registered(name)
    assert factory is not None
    options = parameters(factory)
    assert set(re.findall(r"`(\w+)`", "\n".join(rows))) == {*options}
    settings = yaml.safe_load(re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[0])
    for canary in settings["canaries"].values():
        assert canary["target"] != name or canary["options"].keys() <= {*options}


class Least(Target):
    def open(self): ...

    def run(self, phase):
        with phase("compute"):
            return 3

    def values(self, result):
        return [float(result)]


def test_a_target_needs_three_methods_and_one_that_lacks_any_is_refused_with_its_name():
    target = Least()
    timing, result = target.clock.measure(target.run)
    assert timing.phases.keys() == {"compute"}
    assert target.values(result) == [3.0]
    assert (target.kind, target.samples, target.memory(), target.settings()) == ("Least", 1, None, None)
    assert make(f"{__name__}:Least", {}).environment() == {}
    factory = type("Lacking", (Target,), {"open": Least.open, "values": Least.values})
    with pytest.raises(TypeError, match="run"):
        factory()


class Old:
    """A target by the recipe of 0.1.0, with the other names of that recipe; `settings` and `memory` are its own."""

    clock = HostClock()
    device = "cuda:1"
    reasons = ("not_ready",)
    samples = 2
    cuda_missing = ""
    ask_for_memory: Any = None
    memory = settings = "attributes of its own"
    is_prepared = False

    def open(self):
        self.ask_for_memory([])
        self.cuda_missing = "no_device"

    def run(self, phase): ...

    def values(self, result):
        return [1.0]

    def environment(self):
        return {"old": "1"}

    def close(self): ...

    def model_identity(self):
        return "file-sha256:1"

    def measured_settings(self):
        return {"seed": 3}

    def is_busy(self):
        return True

    def prepare(self):
        self.is_prepared = True


def test_a_target_of_0_1_0_still_works():
    old = Old()
    target = adapt(old)
    asked: list[object] = []
    target.ask_for_memory = asked.append
    assert target.device_memory_left() is None
    target.open()
    assert (asked, target.cuda_missing, target.device) == ([[]], "no_device", "cuda:1")
    assert (target.kind, target.samples, target.reasons) == ("Old", 2, ("not_ready",))
    assert target.environment() == {"old": "1"}
    assert target.memory() is None
    assert (target.identity(), target.settings(), target.is_busy()) == ("file-sha256:1", {"seed": 3}, True)
    target.prepare()
    target.check(None)
    target.reset_memory_peak()
    assert old.is_prepared
    assert target.readings() == ()
    assert (target.profiler, target.is_sweepable) == ("none", False)
    assert adapt(target) is target


SUBCLASS = """
from infercanary.probe.targets.http import HttpTarget

class MyTarget(HttpTarget):
    def environment(self) -> dict[str, str]:
        return {"server": "mine"}
"""


def test_a_target_derived_from_one_of_ours_takes_the_same_options(tmp_path, monkeypatch):
    (tmp_path / "derived_target.py").write_text(SUBCLASS)
    monkeypatch.syspath_prepend(tmp_path)
    target = make("derived_target:MyTarget", {"url": "http://127.0.0.1:1", "keep_alive": False})
    assert target.environment() == {"server": "mine"}
    with pytest.raises(UsageError, match=r"options: unknown key `uri`; did you mean `url`\?"):
        make("derived_target:MyTarget", {"uri": "http://127.0.0.1:1"})
    with pytest.raises(UsageError, match=r"options: `derived_target:MyTarget` does not accept them: .*url"):
        make("derived_target:MyTarget", {})
    sys.modules.pop("derived_target")


def test_missing_abilities_of_an_engine_are_left_out():
    components = {
        "text": lambda: "1.2", "number": lambda: 0, "switch": lambda: True, "plain": "1", "nothing": None,
        "empty": lambda: "", "refused": lambda: 1 / 0,
    }  # fmt: skip
    assert reported(components) == {"text": "1.2", "number": "0", "switch": "true", "plain": "1"}
