"""Where a chat template runs: with the names that templates are written for, without a way out, and not for ever."""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from types import CodeType
from typing import NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_TIME_LIMIT_S = 10.0
_MAX_CHARS = 1 << 26
_MAX_NUMBER_BITS = 1 << 16
_MAX_WIDTH = 1 << 20
# A width of a million, or one that comes from an argument.
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\*|\d{6})|\{[^{}]*:[^{}]*(\{|\d{6})")
_WIDE_FILTERS = ("batch", "center", "indent", "slice")


class Sandbox(ImmutableSandboxedEnvironment):
    """The settings and names of Hugging Face transformers, and limits on time and size.

    It serves one template; `restart` begins each rendering.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,  # a prompt is not HTML
            extensions=[jinja2.ext.loopcontrols, _Generation],
            finalize=self.count,
        )
        self._now = datetime.now().astimezone()
        self.filters["tojson"] = _to_json
        self.filters["replace"] = self.replaced
        self.filters["format"] = self.formatted
        self.filters |= {name: _narrow(self.filters[name]) for name in _WIDE_FILTERS}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._now.strftime
        del self.globals["lipsum"]  # writes as much as it is told to
        self.restart(0)

    def restart(self, num_chars: int) -> None:
        """Begin a rendering of messages of so many characters."""
        self._chars_left = _MAX_CHARS + 8 * num_chars
        self._max_chars = _MAX_CHARS + num_chars
        self._deadline = time.monotonic() + _TIME_LIMIT_S

    def compiled(self, source: str) -> jinja2.Template:
        """The template, with a look at the clock in each round of a loop and each call of a macro."""
        tree = self.parse(source)
        bodies = [node.body for node in tree.find_all(nodes.For)]
        bodies += [node.body for node in tree.find_all(nodes.Macro)]
        for body in bodies:
            body.insert(0, nodes.ExprStmt(_call("tick", []), lineno=1))
        _Joins().visit(tree)
        tree.set_environment(self)
        code = self.compile(tree)
        assert isinstance(code, CodeType)
        return jinja2.Template.from_code(self, code, self.make_globals(None))

    def tick(self) -> None:
        """Refuse to go on for ever."""
        if time.monotonic() > self._deadline:
            raise jinja2.TemplateRuntimeError(f"it ran for more than {_TIME_LIMIT_S:.0f} s")

    def count(self, value: object) -> object:
        """Refuse to write without end."""
        if isinstance(value, str):
            self._chars_left -= len(value)
            self._check(self._chars_left >= 0)
        return value

    def written(self, piece: str) -> str:
        """A piece of the prompt itself, which the template's own text is part of."""
        self.tick()
        self.count(piece)
        return piece

    def joined(self, *values: object) -> str:
        """What `~` is."""
        return self.checked("".join(map(str, values)))

    def replaced(self, value: object, old: object, new: object, count: int | None = None) -> str:
        """The filter `replace`."""
        text, old_text, new_text = str(value), str(old), str(new)
        self._check(len(text) + text.count(old_text) * len(new_text) <= self._max_chars)
        return text.replace(old_text, new_text, -1 if count is None else count)

    def formatted(self, value: object, *args: object, **kwargs: object) -> str:
        """The filter `format`."""
        self._check(not _WIDE_FORMAT.search(str(value)))
        return jinja2.filters.do_format(str(value), *args, **kwargs)

    def checked(self, value: str) -> str:
        self._check(len(value) <= self._max_chars)
        return value

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: object, right: object) -> object:
        """As the sandbox does, where the result is of a reasonable size."""
        size = _size(left), _size(right)
        if operator == "*":
            self._check(size[0] * _times(right) <= self._max_chars and size[1] * _times(left) <= self._max_chars)
        if operator == "+":
            self._check(sum(size) <= self._max_chars)
        if operator == "%" and isinstance(left, str):
            self._check(not _WIDE_FORMAT.search(left))
        if isinstance(left, int) and isinstance(right, int) and operator in {"*", "**"}:
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            self._check(bits <= _MAX_NUMBER_BITS)
        result: object = super().call_binop(context, operator, left, right)
        return result

    def call(__self, __context: jinja2.runtime.Context, __obj: object, *args: object, **kwargs: object) -> object:  # noqa: N805  # `self` may be a name of a template's arguments
        """As the sandbox does; a text's own functions get no huge numbers."""
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps `format`
        if isinstance(owner := getattr(method, "__self__", None), str):
            __self._check_method(owner, getattr(method, "__name__", ""), args)
        result: object = super().call(__context, __obj, *args, **kwargs)
        return __self.checked(result) if isinstance(result, str) else result

    def _check_method(self, text: str, name: str, args: tuple[object, ...]) -> None:
        if name not in {"format", "format_map"}:
            self._check(all(_times(number) <= _MAX_WIDTH for number in args))
        if name == "replace" and len(args) > 1:
            self._check(len(text) + text.count(str(args[0])) * len(str(args[1])) <= self._max_chars)
        if name in {"format", "format_map"}:
            self._check(not _WIDE_FORMAT.search(text))

    def _check(self, is_small: bool) -> None:
        if not is_small:
            raise jinja2.TemplateRuntimeError("it writes too much")


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the model wrote, for training; a prompt has it like all else."""

    tags = {"generation"}  # noqa: RUF012  # as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Joins(jinja2.visitor.NodeTransformer):
    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  # by the node's name
        self.generic_visit(node)
        return _call("joined", node.nodes).set_lineno(node.lineno)


def _call(name: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)


def _size(value: object) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 0


def _times(value: object) -> int:
    return value if isinstance(value, int) else 0


def _narrow(function: Callable[..., object]) -> Callable[..., object]:
    """A filter that takes no huge numbers."""

    @functools.wraps(function)
    def narrow(*args: object, **kwargs: object) -> object:
        numbers: Iterable[object] = [*args, *kwargs.values()]
        if any(_times(number) > _MAX_WIDTH for number in numbers):
            raise jinja2.TemplateRuntimeError("it writes too much")
        return function(*args, **kwargs)

    return narrow


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not jinja2's own filter, which escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
