"""Every InferCanary command in the README and in docs/fleet.md does what the page says."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
import yaml
from ports import free_port
from postgres import PASSWORD, Postgres, running

from tests.programs import ROOT, ended

PAGES = ("README.md", "docs/fleet.md")
PROBE = "controls: false\ncanaries: {c: {target: matmul, options: {size: 8}}}\nlisten: 127.0.0.1:0\n"


def commands():
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        found += re.findall(r"(?m)^(?:infercanary|python -m infercanary\S*) .*$", text)
        found += re.findall(r"`(infercanary [^`]+)`", text)
        found += [f"infercanary exporter {option}" for option in re.findall(r"`(--store [^`]+)`", text)]
        for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
            settings = yaml.safe_load(block.replace("!override ", ""))
            if "store" in settings:
                found.append(f"infercanary exporter --store '{settings['store']}'")
    return [re.sub(r"\s+#.*", "", command) for command in found]


class World(NamedTuple):
    folder: Path
    postgres: Postgres
    url: str
    """URL of an empty database, over the socket."""

    def arguments(self, command):
        (self.folder / "secret").write_text(PASSWORD)
        command = re.sub(r"postgresql://…", "postgresql://infercanary@db.example/infercanary", command)
        where = f"127.0.0.1:{self.postgres.port}/{urlsplit(self.url).path[1:]}"
        command = re.sub(r"//\w+@db\.example(:\d+)?/infercanary", f"//postgres@{where}", command)
        command = re.sub(r"password_file=[^&' ]+", f"password_file={self.folder / 'secret'}", command)
        if "postgresql" in command and "password_file" not in command:
            command = re.sub(
                rf"({re.escape(where)})(\?)?", rf"\1?password_file={self.folder / 'secret'}&", command
            )
        # This server has no TLS; tests/integration/fleet tests TLS.
        command = re.sub(r"sslmode=[\w-]+(&sslrootcert=[^&']+)?", "sslmode=disable", command)
        program, *arguments = shlex.split(command.replace("&'", "'").removesuffix("&"))
        arguments = [one.replace("/etc/infercanary/", f"{self.folder}/") for one in arguments]
        return [sys.executable, *(["-m", "infercanary"] if program == "infercanary" else []), *arguments]

    def run(self, arguments, **environment):
        return ended(*arguments, code=None, cwd=self.folder, env=environment)


def exporter(world, arguments):
    port = free_port()
    (world.folder / "exporter.yaml").write_text("discovery: none\n")
    if "--config" not in arguments:
        arguments += ["--config", "exporter.yaml"]
    log = world.folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*arguments, "--listen", f"127.0.0.1:{port}"], cwd=world.folder, stderr=file
        )
    try:
        text, deadline = "", time.monotonic() + 60
        while not re.search(r"(?m)^infercanary_judge_seconds_total (?!0\.0$)", text):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    text = answer.read().decode()
            except OSError:
                continue
        assert "infercanary_store_up 1.0" in text
        assert "no folder" not in log.read_text()
    finally:
        process.terminate()
        assert process.wait(30) == 0
    if "postgresql" in " ".join(arguments):
        holders = world.postgres.sql("SELECT count(*) FROM lease", world.url)
        assert holders == "1"
    else:
        assert (world.folder / "judge.sqlite").is_file()


def migrate(world, arguments):
    done = world.run(arguments)
    assert done.returncode == 0, done.stderr
    assert world.postgres.sql("SELECT version_num FROM infercanary_schema", world.url)


def beside(world, arguments):
    (world.folder / "probe.yaml").write_text(PROBE)
    server = world.folder / "your-server"
    server.write_text("#!/bin/sh\necho served\nexit 7\n")
    server.chmod(0o755)
    done = world.run(arguments, PATH=f"{world.folder}:{os.environ['PATH']}")
    assert (done.returncode, done.stdout) == (7, "served\n"), done.stderr


def ab(world, arguments):
    """Run `ab` until the experiment needs Docker; tests/stack runs whole experiments."""
    done = world.run(arguments, DOCKER_HOST="tcp://127.0.0.1:1")
    assert done.returncode == 2 and "Docker" in done.stderr.splitlines()[-1], done.stderr


def compare(world, arguments):
    for name, seconds in (("old.jsonl", 0.02), ("new.jsonl", 0.04)):
        rows = (json.dumps({"latency": seconds * (1 + number % 7 / 100)}) for number in range(60))
        (world.folder / name).write_text("\n".join(rows))
    done = world.run(arguments)
    assert done.returncode == 1 and "regressed +100" in done.stdout, done


def scan(world, arguments):
    rows = (json.dumps({"latency": (0.02 if n < 60 else 0.03) * (1 + n % 7 / 100)}) for n in range(120))
    (world.folder / "journal.jsonl").write_text("\n".join(rows))
    done = world.run(arguments)
    assert done.returncode == 1 and "60" in done.stdout, done


def attach(world, arguments):
    done = world.run(arguments, DOCKER_HOST="unix:///no/such/socket")
    assert done.returncode == 2 and "Docker" in done.stderr, done


DOES = {
    "infercanary ab": ab,
    "infercanary attach": attach,
    "infercanary beside": beside,
    "infercanary compare": compare,
    "infercanary exporter": exporter,
    "infercanary scan": scan,
    "python -m infercanary.store.migrate": migrate,
}


@pytest.fixture(scope="module")
def postgres():
    with running() as server:
        yield server


@pytest.mark.takes(30)
@pytest.mark.parametrize("command", commands())
def test_a_command_of_a_page_does_what_the_page_says(command, postgres, tmp_path):
    world = World(tmp_path, postgres, postgres.database())
    (does,) = (does for name, does in DOES.items() if command.startswith(name))
    does(world, world.arguments(command))


def test_the_pages_have_commands_of_each_kind():
    assert {name for name in DOES if any(command.startswith(name) for command in commands())} == DOES.keys()
    assert sum("postgresql" in command for command in commands()) >= 3


SECRET = "s3cr3t"
PLACES = {
    "--store": f"postgresql://me:{SECRET}/{SECRET}?{SECRET}@db/x",
    "store:": f"host=db user=me password='{SECRET} {SECRET}' dbname=x",
}
"""One URL or text for each way to name a store; tests/unit/store/test_postgres.py has more."""


@pytest.mark.parametrize("way", PLACES)
def test_a_password_in_the_store_is_refused_and_not_repeated(way, tmp_path):
    settings, store = tmp_path / "exporter.yaml", PLACES[way]
    settings.write_text("" if way == "--store" else f"store: {json.dumps(store)}")
    options = ["--store", store] if way == "--store" else []
    done = refused(settings, "--listen", "127.0.0.1:0", *options)
    assert len(done.splitlines()) == 1
    assert f"{way.rstrip(':')}: " in done
    assert "postgresql" in done
    assert [*tmp_path.iterdir()] == [settings]  # no file may have the URL as its name


def refused(settings, *options):
    """Return the exporter's message about refused settings, after a check that the message contains no secret."""
    command = (sys.executable, "-m", "infercanary", "exporter", "--config", settings)
    done = ended(*command, *options, code=2, cwd=settings.parent)
    assert SECRET not in done.stdout + done.stderr
    return done.stderr


def test_a_password_of_a_probe_is_refused_and_not_shown(tmp_path):
    settings, url = tmp_path / "exporter.yaml", f"http://me:{SECRET}@127.0.0.1:1"
    settings.write_text(f"discovery: none\nprobes: [{{url: '{url}', service: s, container: c}}]\n")
    assert "'http://me:***@127.0.0.1:1' is not a probe's address" in refused(settings)
