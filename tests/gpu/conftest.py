"""Tests that need a CUDA device. Run them with:

.venv/bin/python -m pytest tests/gpu -rP

-rP prints the measured values, such as each control's share of the device's ceiling.
"""

from pathlib import Path

import pytest

from gpu import why_not

FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # pytest evaluates the option -m after this hook
def pytest_collection_modifyitems(items):
    mine = [item for item in items if FOLDER in item.path.parents]
    why = why_not() if mine else ""
    for item in mine:
        item.add_marker("gpu")
        item.add_marker(pytest.mark.skipif(bool(why), reason=f"no CUDA device: {why}"))


@pytest.fixture
def torch_cuda():
    """Skip unless torch has CUDA; an installed driver is not enough."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch.cuda.is_available() is False")
    return torch
