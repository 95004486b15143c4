"""How answers are made, as far as `/set` changes it: names, values, limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stagewire.wire.errors import RequestRefused
from stagewire.wire.limits import MAX_TOKENS
from stagewire.wire.sampling import SamplingParams

_WHOLE_NUMBERS = ("top_k", "seed")
SAMPLING_NAMES = (
    "temperature", "top_k", "top_p", "min_p",
    "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",
)  # fmt: skip
_NAMES = (*SAMPLING_NAMES, "max_tokens", "timings")


class WrongChoice(ValueError):
    """A name or a value is none; says which there are. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """One parameter of the sampler; None takes what counts without it."""

    name: str
    value: float | None


@dataclass(frozen=True, slots=True)
class Choices:
    """What was chosen; a parameter that is not in `sampling` is what counts where nobody chooses.

    `max_tokens` None lets an answer go on to the context's end. `timings` says after each how fast it was.
    """

    max_tokens: int | None
    timings: bool
    sampling: tuple[Sampling, ...] = ()

    def lines(self) -> list[str]:
        """Each name with its value."""
        chosen = {one.name: one.value for one in self.sampling}
        shown = [f"{name} {_shown(chosen[name]) if name in chosen else 'default'}" for name in SAMPLING_NAMES]
        return [*shown, f"max_tokens {_shown(self.max_tokens)}", f"timings {'on' if self.timings else 'off'}"]

    def changed(self, text: str, start: Choices) -> tuple[Choices, str]:
        """These with a `NAME VALUE`, and what that is now; the value `default` is that of the start.

        Raises:
            WrongChoice: see there.
        """
        name, value = _words(text)
        if name == "timings":
            changed = replace(self, timings=start.timings if value == "default" else _switch(value))
        elif name == "max_tokens":
            changed = replace(self, max_tokens=start.max_tokens if value == "default" else _max_tokens(value))
        else:
            others = tuple(one for one in self.sampling if one.name != name)
            at_start = tuple(one for one in start.sampling if one.name == name)
            mine = at_start if value == "default" else (_sampling(name, value),)
            changed = replace(self, sampling=(*others, *mine))
        return changed, next(line for line in changed.lines() if line.startswith(f"{name} "))


def _words(text: str) -> tuple[str, str]:
    name, *rest = text.replace("=", " ", 1).split() or [""]
    name = name.lower().replace("-", "_")
    if name not in _NAMES:
        raise WrongChoice(f"there is nothing called {name[:40]!r} to set; there are {', '.join(_NAMES)}")
    if len(rest) != 1:
        raise WrongChoice(f"expected /set {name} VALUE, or /set {name} default")
    return name, rest[0].lower()


def _switch(value: str) -> bool:
    if value not in ("on", "off"):
        raise WrongChoice(f"timings={value[:40]}: expected on or off")
    return value == "on"


def _max_tokens(value: str) -> int | None:
    if value == "off":
        return None
    number = _number("max_tokens", value, int)
    if not 1 <= number <= MAX_TOKENS:
        raise WrongChoice(f"max_tokens={value[:40]}: must be between 1 and {MAX_TOKENS}, or off")
    return int(number)


def _sampling(name: str, value: str) -> Sampling:
    if name == "seed" and value == "off":
        return Sampling(name, None)
    number = _number(name, value, int if name in _WHOLE_NUMBERS else float)
    try:
        SamplingParams(**{name: number})  # type: ignore[arg-type]  # of the kind that the name asks for
    except RequestRefused as error:
        raise WrongChoice(error.detail) from None
    return Sampling(name, number)


def _number(name: str, value: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(value)
    except ValueError:
        whole = "a whole number" if kind is int else "a number"
        raise WrongChoice(f"{name}={value[:40]}: expected {whole}, or default") from None


def _shown(value: float | None) -> str:
    return "off" if value is None else f"{value}"
