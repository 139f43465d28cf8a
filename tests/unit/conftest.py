import sys

import pytest

from infercanary.command import cli


@pytest.fixture
def infercanary(monkeypatch, capsys, tmp_path):
    """Return a function that runs a command line here, in an empty folder, and returns its exit code and output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["infercanary", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, *capsys.readouterr()

    return call
