"""Settings files: YAML into typed structs, where every mistake is one line that names the place and the mend."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

T = TypeVar("T")

_MAX_BYTES = 1_000_000


class UsageError(Exception):
    """A mistake in what a person wrote. Its text is one line: the place, what is wrong, and the mend."""


def load(path: str | os.PathLike[str], kind: type[T]) -> T:
    """The settings in the YAML file ``path`` as ``kind`` (a :class:`msgspec.Struct` that forbids unknown keys).

    Raises :class:`UsageError`.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}); check the path and its permissions"
        ) from None
    if len(text) > _MAX_BYTES:
        raise UsageError(f"{path}: larger than {_MAX_BYTES} bytes; is this the right file?")
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(_yaml_line(path, error)) from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply; is this the right file?") from None
    if document is None:
        document = {}
    return convert(document, kind, str(path))


def convert(document: object, kind: type[T], place: str) -> T:
    """``document`` as ``kind``, or a :class:`UsageError` that says where in ``place`` it does not fit."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise UsageError(_validation_line(place, kind, str(error))) from None


def _yaml_line(path: object, error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{path}:{mark.line + 1}:{mark.column + 1}: not YAML: {error.problem}"
    return f"{path}: not YAML: {' '.join(str(error).split())}"


def _validation_line(place: str, kind: object, message: str) -> str:
    """msgspec says ``Object contains unknown field `x` - at `$.a[0]` ``; a person reads ``place: a[0]: …``."""
    text, _, path = message.partition(" - at `")
    where = path.rstrip("`").removeprefix("$").removeprefix(".")
    text = (
        text.replace("Object ", "the mapping ").replace("`object`", "a mapping").replace("`array`", "a list")
    )
    if (unknown := re.search(r"unknown field `(.*)`", text)) and (known := _keys_at(kind, where)):
        text = f"unknown key `{unknown[1]}`; known keys: {', '.join(known)}"
    text = text.replace("required field", "the required key")
    return ": ".join(part for part in (place, where, text[:1].lower() + text[1:]) if part)


def _keys_at(kind: object, where: str) -> list[str]:
    """The keys that the struct found by walking ``where`` (``a.b[0]``) from ``kind`` would take."""
    info = msgspec.inspect.type_info(kind)
    for step in re.findall(r"\[[^]]*\]|[^.\[\]]+", where):
        options = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
        for info in options:
            if isinstance(info, msgspec.inspect.StructType) and not step.startswith("["):
                info = next((f.type for f in info.fields if f.encode_name == step), info)
                break
            if isinstance(info, (msgspec.inspect.ListType, msgspec.inspect.VarTupleType)) and step.startswith(
                "["
            ):
                info = info.item_type
                break
            if isinstance(info, msgspec.inspect.DictType):
                info = info.value_type
                break
    options = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    return [f.encode_name for o in options if isinstance(o, msgspec.inspect.StructType) for f in o.fields]
