"""Parts that are late, broken or refuse → the answers in time, and the reasons for the others."""

import threading
import time
from collections.abc import Iterator
from importlib import import_module

from cdc.errors import SinkError
from deploy.asking import Questions, SilentError
from deploy.status.patience import only_answer


def test_what_a_late_or_broken_part_has_answered_stands_and_hides_no_other() -> None:
    asked, ended = Questions[int](0.3), threading.Event()

    def late() -> Iterator[int]:
        yield 1
        ended.wait(10)

    def broken() -> Iterator[int]:
        yield 2
        raise KeyError("a bug")

    began = time.monotonic()
    for name, question in (("late", late), ("broken", broken), ("whole", lambda: [3, 4])):
        asked.ask(name, question)
    given = {name: asked.answers(name) for name in ("late", "broken", "whole", "nobody")}
    assert time.monotonic() - began < 3
    ended.set()
    assert given["nobody"] is None
    answers = {name: each.answers for name, each in given.items() if each}
    assert answers == {"late": [1], "broken": [2], "whole": [3, 4]}
    failures = {name: type(each.failure) for name, each in given.items() if each}
    assert failures == {"late": SilentError, "broken": KeyError, "whole": type(None)}


def test_where_one_answer_is_asked_for_it_comes_or_the_reason_why_not() -> None:
    asked, ended = Questions[object](0.2), threading.Event()
    refusal = SinkError("it is full")

    def refused() -> list[object]:
        raise refusal

    asked.ask("nothing", lambda: [None])
    asked.ask("refused", refused)
    asked.ask("broken", lambda: [1 / 0])
    asked.ask("absent", lambda: [import_module("no_such_package.at_all")])
    asked.ask("late", lambda: [ended.wait(10)])
    assert only_answer(asked, "nothing") is only_answer(asked, "nobody") is None
    assert only_answer(asked, "refused") is refusal
    assert only_answer(asked, "broken").what == "internal error: ZeroDivisionError"
    absent = only_answer(asked, "absent")
    assert absent.what == "the package no_such_package isn't installed"
    assert "millrace status" in absent.remedy
    assert only_answer(asked, "late").what == "no answer within 0 s"
    ended.set()
