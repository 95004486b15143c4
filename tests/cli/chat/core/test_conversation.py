"""A conversation: what is sent, and what goes first when it has become too long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stagewire.cli.chat.core.conversation import Conversation, Message, Turn

FOUR = Conversation("be brief", tuple(Turn(f"q{number}", f"a{number}") for number in range(4)))


def test_messages_begin_with_the_system_and_end_with_the_question() -> None:
    assert Conversation("s", (Turn("q", "a"),)).messages("next") == (
        Message("system", "s"), Message("user", "q"), Message("assistant", "a"), Message("user", "next"),
    )  # fmt: skip
    assert Conversation().messages() == ()
    assert Conversation("").messages("x") == (Message("system", ""), Message("user", "x"))


def test_dropping_the_oldest_keeps_the_system_message() -> None:
    assert FOUR.without_oldest(3).messages() == (
        Message("system", "be brief"), Message("user", "q3"), Message("assistant", "a3"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("room", "at_least", "expected"),
    [(10, 1, 1), (10, 3, 3), (9, 1, 1), (8, 1, 1), (7, 1, 2), (6, 1, 2), (5, 1, 3), (4, 1, 3), (3, 1, 4), (2, 1, 4),
     (1, 1, None), (10, 5, None), (2, 4, 4)],
)  # fmt: skip
def test_the_fewest_turns_go_that_make_room(room: int, at_least: int, expected: int | None) -> None:
    """Ten messages with the question: one, two for each turn, and one."""

    def fits(messages: Sequence[Message]) -> bool:
        return len(messages) <= room

    assert len(FOUR.messages("q")) == 10
    assert FOUR.fewest_dropped("q", at_least, fits) == expected


def test_where_there_is_no_turn_none_can_go() -> None:
    assert Conversation("s").fewest_dropped("q", 1, lambda _messages: True) is None
