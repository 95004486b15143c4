"""Flags for the fields of a settings dataclass, so that no default is written twice."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from stagewire.cli.characters import path_text
from stagewire.sockets.condition import WireCondition

T = TypeVar("T")

_READERS: dict[object, Callable[[str], object]] = {
    str: str,
    int: int,
    float: float,
    WireCondition: WireCondition.parse,
}


def add_settings(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, settings: type, described: Mapping[str, str]
) -> None:
    """Adds `--field-name` for each described field.

    What is not given stays out of the parsed options, so that the dataclass fills in its own default.
    """
    hints = typing.get_type_hints(settings)
    by_name = {field.name: field for field in dataclasses.fields(settings)}
    for name, text in described.items():
        _add(parser, by_name[name], hints[name], text)


def add_other_settings(parser: argparse.ArgumentParser, settings: type, title: str, without: Collection[str]) -> None:
    """Adds the fields that are not in `without`, in a group, with only their names to explain them."""
    names = (field.name for field in dataclasses.fields(settings) if field.name not in without)
    add_settings(parser.add_argument_group(title), settings, dict.fromkeys(names, ""))


def chosen(settings: type[T], options: argparse.Namespace, **given: object) -> T:
    """The settings with the flags that were given, and `given` on top.

    Raises:
        SettingsError: as the dataclass does.
    """
    names = {field.name for field in dataclasses.fields(settings)}  # type: ignore[arg-type]
    return settings(**{name: value for name, value in vars(options).items() if name in names} | given)


def _add(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    field: dataclasses.Field[object],
    hint: object,
    text: str,
) -> None:
    default = field.default
    is_told = default in (None, dataclasses.MISSING) or "(default" in text
    shown = "" if is_told else f"(default: {default})"
    parser.add_argument(
        f"--{field.name.replace('_', '-')}", type=_reader(field.name, hint, default), default=argparse.SUPPRESS,
        metavar=field.name.rpartition("_")[2].upper(), help=f"{text} {shown}".strip().replace("%", "%%"),
    )  # fmt: skip


def _reader(name: str, hint: object, default: object) -> Callable[[str], object]:
    """Where None is not the default it means `off`."""
    scalar = _scalar(hint)
    read = path_text if name.endswith("_directory") else _READERS[scalar]
    if scalar is hint or default is None:
        return read

    def read_or_off(text: str) -> object:
        return None if text == "off" else read(text)

    return read_or_off


def _scalar(hint: object) -> object:
    """`int` of `int | None`."""
    if isinstance(hint, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint
