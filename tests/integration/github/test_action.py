"""The GitHub action (action.yml): its steps run as on a runner, with a local server in place of GitHub's API."""

import json
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.programs import ROOT
from tests.scenarios import cases

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
DEFAULTS = {name: each.get("default", "") for name, each in ACTION["inputs"].items()}


class Api(BaseHTTPRequestHandler):
    """Part of GitHub's API: the comments of one pull request, three on a page."""

    comments: list[dict[str, Any]]
    asked: list[str]
    status: int

    def do_GET(self):
        found = re.search(r"[?&]page=(\d+)", self.path)
        page = int(found[1]) if found else 1
        more = len(self.comments) > 3 * page
        url = f"http://{self.headers['Host']}/repos/acme/search/issues/7/comments?page={page + 1}"
        link = {"Link": f'<{url}>; rel="next", <{url}>; rel="last"'} if more else {}
        self.reply(self.comments[3 * page - 3 : 3 * page], link)

    def do_POST(self):
        self.comments.append({"id": len(self.comments), "body": self.body()})
        self.reply(self.comments[-1])

    def do_PATCH(self):
        comment = self.comments[int(self.path.rpartition("/")[2])]
        comment["body"] = self.body()
        self.reply(comment)

    def body(self):
        return str(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"])

    def reply(self, answer, headers=()):
        assert self.headers["Authorization"] == "Bearer secret"
        self.asked.append(f"{self.command} {self.path}")
        self.send_response(self.status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def github():
    """Run the API; yield its URL and its class, which stores the comments."""
    api = type("Github", (Api,), {"comments": [], "asked": [], "status": 200})
    server = ThreadingHTTPServer(("127.0.0.1", 0), api)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", api
    server.shutdown()
    server.server_close()


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def runner(tmp_path, github):
    (tmp_path / "infercanary").mkdir()
    # the action's first step installs this folder
    (tmp_path / "infercanary/bin").symlink_to(Path(sys.executable).parent)

    def run(step, outputs=(), **inputs):
        known = {
            "github.action_path": str(ROOT),
            "github.event.pull_request.number": "7",
            **{f"inputs.{name}": value for name, value in {**DEFAULTS, "token": "secret", **inputs}.items()},
            **{f"steps.compare.outputs.{name}": value for name, value in dict(outputs).items()},
        }

        def filled(text):
            return re.sub(r"\$\{\{ (\S+) \}\}", lambda match: known[match[1]], text)

        environment = {
            "PATH": os.environ["PATH"], "RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(tmp_path / "output"),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GITHUB_API_URL": github[0],
            "GITHUB_REPOSITORY": "acme/search", "GITHUB_SERVER_URL": "https://github.com", "GITHUB_RUN_ID": "42",
            **{name: filled(value) for name, value in STEPS[step]["env"].items()},
        }  # fmt: skip
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", filled(STEPS[step]["run"])]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )

    return run


def files(folder, *levels):
    for number, level in enumerate(levels):
        rng = random.Random(number)
        path = folder / f"{number}.txt"
        path.write_text("".join(f"{level * rng.lognormvariate(0, 0.004)}\n" for _ in range(60)))
        yield str(path)


def outputs(folder):
    return dict(line.split("=", 1) for line in (folder / "output").read_text().splitlines())


def test_a_regression_is_commented_and_fails(runner, github, tmp_path):
    old, new = files(tmp_path, 20, 23)
    inputs = {
        "command": "compare",
        "baseline": old,
        "candidate": new,
        "options": "--restart-sd 0.5\n\n--gate latency\n",
    }
    recorded = runner("Compare", record=str(tmp_path / "ci.sqlite"), **inputs)
    assert "nothing to record; give journals" in recorded.stderr, "files of numbers name no start"
    for name in ("output", "summary"):
        (tmp_path / name).unlink(missing_ok=True)
    done = runner("Compare", **inputs)
    assert done.returncode == 0, done.stderr
    found = outputs(tmp_path)
    assert found["code"] == "1"
    assert Path(found["report"]).read_text().startswith("<!doctype html>")
    summary = (tmp_path / "summary").read_text()
    assert summary.startswith("### Latency\n\n**regressed +1")
    assert "| latency |" in summary
    assert summary == f"### Latency\n\n{done.stdout}"

    _, api = github
    api.comments += [{"id": n, "body": body} for n, body in enumerate(["hello", None, "x", "y"])]
    assert runner("Comment", found, **inputs).stdout == ""
    assert len(api.comments) == 5
    assert api.asked[-1] == "POST /repos/acme/search/issues/7/comments"
    [body] = [each["body"] for each in api.comments[4:]]
    assert body.startswith("<!-- infercanary: Latency -->\n### Latency\n\n**regressed")
    assert body.endswith("\n[The job](https://github.com/acme/search/actions/runs/42)\n")
    # The next run replaces its own comment, which is not on the first page. A run with another name adds a
    # comment.
    Path(found["answer"]).write_text("### Latency\n\n**equivalent**\n" + "x" * 50_000 + "\n" + "y" * 50_000)
    assert runner("Comment", found, **inputs).stdout == ""
    assert len(api.comments) == 5
    assert api.asked[-1] == "PATCH /repos/acme/search/issues/comments/4"
    assert "**equivalent**" in api.comments[4]["body"]
    assert len(api.comments[4]["body"]) < 65_536
    runner("Comment", found, **inputs, name="On the GPU")
    assert len(api.comments) == 6
    api.status = 403
    done = runner("Comment", found, **inputs)
    assert done.returncode == 0
    assert done.stdout.startswith("::warning::no comment on the pull request (HTTP Error 403")

    done = runner("Answer", found, **inputs)
    assert (done.returncode, done.stdout) == (1, "::error::Latency: regressed\n")


@cases(
    [
        ("0", "warn", 0, ""),
        ("0", "fail", 0, ""),
        ("3", "warn", 0, "::warning::Latency: not known\n"),
        ("3", "fail", 3, "::error::Latency: not known\n"),
        ("0", "wran", 2, "::error::unknown: wran is neither warn nor fail\n"),
    ],
)
def test_exit_codes_of_answers(code, unknown, exit_code, line, runner):
    done = runner("Answer", {"code": code}, unknown=unknown)
    assert (done.returncode, done.stdout) == (exit_code, line)


@cases(
    [
        ({"command": "scan"}, "::error::command: scan is neither ab nor compare\n"),
        (
            {"options": "--restart-sd 1\ngpus 1"},
            "::error::options: gpus is not an option; write one option on each line\n",
        ),
    ],
)
def test_a_mistake_in_the_inputs_is_one_line(inputs, line, runner):
    done = runner("Compare", **{"baseline": "a", "candidate": "b", **inputs})
    assert (done.returncode, done.stdout) == (2, line)


def test_a_mistake_in_the_command_ends_the_step(runner, tmp_path):
    done = runner("Compare", command="compare", baseline="--help", candidate="$(touch owned)")
    assert done.returncode == 2
    assert done.stderr.startswith("infercanary: --help: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "output").exists()
    assert not (tmp_path / "owned").exists()


def test_the_action_and_its_steps_agree():
    # no step reads this input, or the action does not declare it
    assert {*re.findall(r"inputs\.(\w+)", (ROOT / "action.yml").read_text())} == {*ACTION["inputs"]}
    for step in STEPS.values():
        # a shell would run the text of the expression as code: pass it by env
        assert step["shell"] == "bash" and "${{" not in step["run"]
        for script in re.findall(r"\$ACTION/(deploy/github/[\w.]+)", step["run"]):
            path = ROOT / script
            assert path.is_file()
            assert path.suffix == ".py" or os.access(path, os.X_OK)
            needed = {*re.findall(r"\$([A-Z]+)\b", path.read_text())} | {
                *re.findall(r"environ\['([A-Z]+)'\]", path.read_text())
            }
            assert needed - {"RUNNER_TEMP"} <= step["env"].keys()
