"""Reads settings files: YAML to typed structs. Each mistake becomes one line with its place and the fix."""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from infercanary.contract.text import masked, printable

T = TypeVar("T")

_MAX_BYTES = 1_000_000
_LONGEST_KEY = 64  # only this many characters of an unknown key are compared with known keys
# a long error line keeps this many characters at its beginning (place) and at its end (fix)
_HEAD, _TAIL = 1_500, 500


class UsageError(Exception):
    """A user's mistake. The text is one printable line with the place, the mistake, and the fix."""

    def __str__(self) -> str:
        text = printable(masked(" ".join(super().__str__().split())))
        return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]} … {text[-_TAIL:]}"


def load(path: str | os.PathLike[str], kind: type[T]) -> T:
    """Read a YAML file.

    Args:
        kind: Type to return, such as a :class:`msgspec.Struct` that forbids unknown keys. An empty file is an empty
            mapping.

    Raises:
        UsageError: The file cannot be read, is not YAML, or does not fit ``kind``.
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
        document = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise UsageError(_yaml_line(path, error)) from None
    except ValueError as error:  # for example the date 2026-13-01, or a number of 5,000 digits
        raise UsageError(f"{path}: YAML cannot read a value ({error}); put the value in quotes") from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply; is this the right file?") from None
    if document is None:
        document = {}
    return convert(document, kind, str(path))


def convert(document: object, kind: type[T], place: str, strict: bool = True) -> T:
    """Convert a YAML or JSON document to ``kind``, with defaults filled in.

    Args:
        place: Name of the file, for messages.
        strict: False to convert texts such as ``1`` and ``true`` to numbers and booleans.

    Raises:
        UsageError: The document does not fit ``kind``; the message has the place.
    """
    try:
        return msgspec.convert(document, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise UsageError(_validation_line(place, kind, str(error), document)) from None


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Return a line about an unknown key, with the most similar known key and all known keys."""
    near = get_close_matches(key[:_LONGEST_KEY], known, 1)
    meant = f"did you mean `{near[0]}`? " if near else ""
    return f"unknown key `{key}`; {meant}known keys: {', '.join(known) or 'none'}"


class _Loader(yaml.SafeLoader):
    """Refuses YAML that is valid but never intended: duplicate keys (only the last would count), infinity and NaN."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key `{key.value}` is repeated; keep one entry", key.start_mark
                    )
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        value: float = super().construct_yaml_float(node)
        if not math.isfinite(value):
            raise yaml.constructor.ConstructorError(
                None, None, f"`{node.value}` is not a finite number; use a finite number", node.start_mark
            )
        return value


_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


_YAML_HINTS = {
    "mapping values are not allowed here": "is a `:` missing above, or is the indentation wrong?",
    "that cannot start any token": "indent with spaces, and put special characters in quotes",
    "could not determine a constructor": "remove the tag",
    "found another document": "keep one document, and remove `---`",
}


def _yaml_line(path: object, error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None or error.problem is None:
        return f"{path}: not YAML: {error}; is this the right file?"
    mark, problem = error.problem_mark, error.problem.removeprefix("but ")
    what = "" if isinstance(error, yaml.constructor.ConstructorError) else "not YAML: "
    hint = next((f"; {hint}" for part, hint in _YAML_HINTS.items() if part in problem), "")
    return f"{path}:{mark.line + 1}:{mark.column + 1}: {what}{problem}{hint}"


def _validation_line(place: str, kind: object, message: str, document: object) -> str:
    """Rewrite a message of msgspec, ``… unknown field `x` - at `$.a[0]` ``, for users: ``place: a[0]: …``."""
    text, _, path = message.partition(" - at `")
    where = path.rstrip("`").replace("key` in `", "").removeprefix("$").removeprefix(".")
    if (unknown := re.search(r"unknown field `(.*)`", text, re.DOTALL)) and (known := _keys_at(kind, where)):
        text = unknown_key(unknown[1], known)
    elif missing := re.search(r"missing required field `(.*)`", text):
        text = f"the required key `{missing[1]}` is missing"
    elif (invalid := re.fullmatch(r"Invalid enum value '(.*)'", text)) and (
        choices := _choices_at(kind, where)
    ):
        text = f"`{invalid[1]}` is none of {', '.join(choices)}"
    elif path.startswith("key` in"):
        text = f"{text} as a key; put the key in quotes"
    text = text.replace(" | null`", "`")  # the user gave a value, so "or null" would not help
    for word, readable in _READABLE.items():
        text = text.replace(word, readable)
    text = re.sub(r"of length >= (\d+)", r"of length \1 or more", text)
    while "[...]" in where and (named := _name_entry(document, kind, where, message)) is not None:
        where = named
    text += _FORMS.get(text[:1].lower() + text[1:], "")
    if where and text.startswith("Expected a mapping") and (known := _keys_at(kind, where)):
        text += f"; its keys: {', '.join(known)}"
    if place and where.startswith("["):
        place, where = place + where, ""
    return ": ".join(part for part in (place, where, text[:1].lower() + text[1:]) if part)


_FORMS = {
    "expected a number, got text": "; leave the unit out: 10 for 10 s, 0.05 for 5 %",
    "expected a number < 1.0": "; 0.03 is 3 %",
    "expected a mapping, got a list": "; leave the `-` out, and write `name: value`",
    "expected a list, got text": "; write the list in brackets, as in [a, b]",
    "expected a list, got a whole number": "; write the list in brackets, as in [1, 2]",
}

_READABLE = {
    "`int | str`": "text or a whole number",
    "`str | object`": "text or a mapping",
    "`object | array`": "a list or a mapping",
    "`object`": "a mapping",
    "`array`": "a list",
    "`str`": "text",
    "`int`": "a whole number",
    "`float`": "a number",
    "`bool`": "true or false",
    "`null`": "nothing",
}


def _name_entry(document: object, kind: object, where: str, message: str) -> str | None:
    """Return ``where`` with its first ``[...]`` replaced by a key of the mapping, because msgspec does not name the
    key.

    To find the key, the document is converted with one entry of the mapping at a time, until the same error occurs.
    """
    before, _, after = where.partition("[...]")
    steps = [int(step[1:-1]) if step[0] == "[" else step for step in re.findall(r"\[\d+]|[^.\[\]]+", before)]
    trial: Any = copy.deepcopy(document)
    entries = trial
    try:
        for step in steps:
            entries = entries[step]
    except LookupError:  # a key that contains a dot
        return None
    whole = dict(entries)
    for key, value in whole.items():
        entries.clear()
        entries[key] = value
        try:
            msgspec.convert(trial, kind)
        except msgspec.ValidationError as error:
            if str(error) == message:
                return f"{before}.{key}{after}".removeprefix(".")
    return None


def _keys_at(kind: object, where: str) -> list[str]:
    structs = (o for o in _types_at(kind, where) if isinstance(o, msgspec.inspect.StructType))
    return [field.encode_name for struct in structs for field in struct.fields]


def _choices_at(kind: object, where: str) -> list[str]:
    literals = (o for o in _types_at(kind, where) if isinstance(o, msgspec.inspect.LiteralType))
    return [str(value) for literal in literals for value in literal.values]


def _types_at(kind: object, where: str) -> tuple[msgspec.inspect.Type, ...]:
    """Return the types allowed for the value at ``where`` (``a.b[0]``) within ``kind``."""
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
    return info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
