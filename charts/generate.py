"""``make chart`` (also part of ``make dashboards``): writes the chart's copies and README, and the plain
manifests.

Helm reads only files in the chart's folder, so this program copies rules and dashboards into this folder. The
README's table comes from the comments in values.yaml: a comment describes the key below it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts/infercanary"
PLAIN = ROOT / "deploy/kubernetes"
COPIES = {"rules": "prometheus/rules/*.yml", "dashboards": "grafana/dashboards/json/*.json"}
"""Pattern of the copied files, by folder in the chart."""
NAMESPACE = """# Rendered by `make chart`: edit charts/infercanary instead. {about}
apiVersion: v1
kind: Namespace
metadata:
  name: infercanary
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""
README = """<!-- Written by `make chart` from Chart.yaml and values.yaml. -->
# infercanary {version}

{description}

```sh
helm install infercanary charts/infercanary --namespace infercanary --create-namespace \\
  --set image.repository=registry.example.com/infercanary-exporter
```

[docs/kubernetes.md](../../docs/kubernetes.md) describes all steps up to a judged rollout. Helm refuses values that are
unknown to `values.schema.json`. Rules and dashboards are copies: edit `prometheus/rules` and `grafana/dashboards/json`.

| value | default | meaning |
|---|---|---|
{rows}
"""


def copies() -> dict[Path, str]:
    """Return the content of the chart's copied files by path."""
    return {
        CHART / folder / source.name: source.read_text(encoding="utf-8")
        for folder, pattern in COPIES.items()
        for source in sorted(ROOT.glob(pattern))
    }


def described(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the values of a values.yaml that have a description.

    Args:
        text: Content of the file.

    Yields:
        Dotted key, default as JSON or empty for a section, and description.
    """
    lines = text.splitlines()

    def comment_above(line: int) -> str:
        words: list[str] = []
        while line and (found := re.fullmatch(r" *# (.+)", lines[line - 1])):
            words.insert(0, found[1])
            line -= 1
        return " ".join(words)

    def walk(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, str, str]]:
        for key, value in node.value:
            name = f"{prefix}{key.value}"
            inner = [*walk(value, f"{name}.")] if isinstance(value, yaml.MappingNode) else []
            if about := comment_above(key.start_mark.line):
                yield name, "" if inner else _default(value), about
            yield from inner

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    yield from walk(root, "")


def _default(node: yaml.Node) -> str:
    value = yaml.safe_load(yaml.serialize(node, Dumper=yaml.SafeDumper))
    return f"`{json.dumps(value)}`"


def readme() -> str:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    rows = [f"| `{key}` | {default} | {about} |" for key, default, about in described(values)]
    return README.format(version=chart["version"], description=chart["description"], rows="\n".join(rows))


def render(*options: str) -> str:
    """Render the chart with `helm template`, as release `infercanary` in the namespace `infercanary`.

    Args:
        options: Further options of Helm.

    Returns:
        YAML.

    Raises:
        subprocess.CalledProcessError: Helm refuses; its `stderr` has the reason.
    """
    command = ["helm", "template", "infercanary", str(CHART), "--namespace", "infercanary", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603
    return done.stdout


def plain() -> dict[Path, str]:
    """Return the manifests for a cluster without Helm, as YAML by path.

    They lack the dashboards, because kubectl can make ConfigMaps directly from the files.
    """
    off = ("--set", "dashboards.enabled=false")
    exporter = render(*off, "--set", "monitoring.enabled=false")
    operated = [f"--show-only=templates/{name}.yaml" for name in ("podmonitor", "prometheusrule")]
    monitoring = render(*off, "--set", "monitoring.enabled=true", *operated)
    name = "Replace the image and the links by yours."
    return {
        PLAIN / "exporter.yaml": _without_helm(NAMESPACE.format(about=name) + exporter),
        PLAIN / "prometheus-operator.yaml": "# Rendered by `make chart`: edit charts/infercanary instead.\n"
        + _without_helm(monitoring),
    }


def _without_helm(text: str) -> str:
    text = re.sub(r"^ +(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^# Source: .*\n", "", text, flags=re.MULTILINE)


def main() -> None:
    """Write all files, and remove copies of files that no longer exist."""
    wanted = copies()
    for folder in COPIES:
        for path in (CHART / folder).glob("*"):
            if path not in wanted:
                path.unlink()
    _write(wanted | {CHART / "README.md": readme()})
    if shutil.which("helm"):
        _write(plain())  # rendered from the files written above
    else:
        print("helm is not installed, so deploy/kubernetes was not written; run .ci/helm", file=sys.stderr)


def _write(files: dict[Path, str]) -> None:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
