"""``python -m release.sbom``: exporter/infercanary.cdx.json, the bill of materials that a wheel carries (PEP 770).

A wheel contains no other project's code, so what it is made of is itself; what it depends on is listed with the ranges
of pyproject.toml, by extra. Which versions an image then has is its own bill's matter (.github/workflows/release.yml).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "exporter/infercanary.cdx.json"
_LEFT_OUT = ("dev", "mutation", "site")  # of developers
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*])?\s*([^;]*)(?:;\s*(.*))?")


def bill(project: dict[str, Any]) -> dict[str, Any]:
    """Make the bill in CycloneDX 1.6, which https://cyclonedx.org/docs/1.6/json describes.

    Args:
        project: The table `project` of pyproject.toml.

    Returns:
        JSON, with neither a time nor a serial number: the same project has the same bill.
    """
    reference = f"pkg:pypi/{project['name']}@{project['version']}"
    components = [*_components(project)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": reference,
                "name": project["name"],
                "version": project["version"],
                "purl": reference,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": reference, "dependsOn": [each["bom-ref"] for each in components]}],
    }


def _components(project: dict[str, Any]) -> Iterator[dict[str, Any]]:
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    for extra, requirements in groups.items():
        for text in requirements if extra not in _LEFT_OUT else ():
            found = _REQUIREMENT.fullmatch(text)
            if found is None:
                raise ValueError(f"pyproject.toml: `{text}` is no requirement that release/sbom.py reads")
            name, versions, marker = found.groups(default="")
            if name == project["name"]:
                continue
            properties = {"infercanary:versions": versions.strip(), "infercanary:marker": marker}
            yield {
                "type": "library",
                "bom-ref": f"{extra or 'required'}:{name}",
                "name": name,
                "scope": "optional" if extra else "required",
                "purl": f"pkg:pypi/{name.lower().replace('_', '-')}",
                "properties": [
                    *({"name": key, "value": value} for key, value in properties.items() if value),
                    *([{"name": "infercanary:extra", "value": extra}] if extra else []),
                ],
            }


def text() -> str:
    """The file, as it is to be.

    Returns:
        JSON text.
    """
    tomllib = import_module("tomllib")  # from Python 3.11 on, by name: mypy checks for 3.10
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return json.dumps(bill(project), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
