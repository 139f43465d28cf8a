"""``python -m release.sbom``: writes exporter/infercanary.cdx.json, the bill of materials in the wheel (PEP
770).

A wheel contains no code of other projects. So the bill lists the project and its dependencies, by extra, with
the version ranges of pyproject.toml. An image has its own bill with its exact versions
(.github/workflows/release.yml).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from release import pyproject

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "exporter/infercanary.cdx.json"
_LEFT_OUT = ("dev", "mutation", "site")  # extras for developers
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*])?\s*([^;]*)(?:;\s*(.*))?")


def bill(project: dict[str, Any]) -> dict[str, Any]:
    """Return the bill in CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json).

    The bill has no time and no serial number, so that equal projects have equal bills.

    Args:
        project: Table `project` of pyproject.toml.
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
                raise ValueError(
                    f"pyproject.toml: `{text}` is not a requirement that release/sbom.py can read"
                )
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
    return json.dumps(bill(pyproject()["project"]), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
