"""The chaos store: faults by seed, counted, each with the effect that its name promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from cloudshard.errors import AlreadyExists, CloudshardError, Conflict, NotFound, RecipeError, Throttled, Unavailable
from cloudshard.store.chaos import KINDS, LATEST_DUPLICATE, VERBS, ChaosStore, from_spec
from cloudshard.store.memory import MemoryStore
from cloudshard.store.port import Store

ALL = dict.fromkeys(KINDS, 0.1)


def outcomes(store: Store, rounds: int = 100) -> list[str]:
    told = []

    def note(call: Callable[[], object]) -> None:
        try:
            told.append(repr(call()))
        except CloudshardError as error:
            told.append(type(error).__name__)

    for number in range(rounds):
        key = f"k{number % 10}"
        note(lambda key=key: store.create(key, b"x" * 100).key)
        note(lambda key=key: store.get(key))
        note(lambda key=key: store.put(key, b"y" * 50).key)
        note(lambda: sum(len(page.objects) for page in store.list()))
        note(lambda key=key: store.delete([key]))
    return told


def chaos(seed: int, rates: dict[str, object] = ALL, **how: object) -> ChaosStore:
    return ChaosStore(MemoryStore(), seed, rates, sleep=lambda seconds: None, **how)


def test_the_same_seed_gives_the_same_faults() -> None:
    first, second, other = chaos(7), chaos(7), chaos(8)
    assert outcomes(first) == outcomes(second) != outcomes(other)
    assert first.injected == second.injected != other.injected
    assert set(KINDS) <= set(first.injected)


def test_no_rates_no_faults() -> None:
    store = chaos(1, {})
    assert outcomes(store) == outcomes(MemoryStore())
    assert store.injected == Counter()


@pytest.mark.parametrize(
    ("kind", "error", "done"),
    [
        ("throttled", Throttled, False),
        ("conflict", Conflict, False),
        ("lost_request", Unavailable, False),
        ("lost_answer", Unavailable, True),
    ],
)
def test_what_a_fault_of_a_write_does(kind: str, error: type[CloudshardError], done: bool) -> None:
    store = chaos(1, {"create": {kind: 1.0}})
    with pytest.raises(error):
        store.create("k", b"x")
    assert store.injected == {kind: 1}
    assert store.injected_by_verb == {("create", kind): 1}
    if done:
        assert store.inner.get("k") == b"x"
    else:
        with pytest.raises(NotFound):
            store.inner.get("k")


def test_a_lost_answer_hides_a_refusal_too() -> None:
    store = chaos(1, {"create": {"lost_answer": 1.0}})
    store.inner.create("k", b"x")
    with pytest.raises(Unavailable):
        store.create("k", b"y")


def test_a_duplicate_arrives_later() -> None:
    store = chaos(1, {"put": {"duplicate": 1.0}})
    store.put("k", b"old")
    store.inner.put("k", b"new")
    for _ in range(LATEST_DUPLICATE):
        store.head("k")
    assert store.inner.get("k") == b"old"


def test_a_duplicate_that_is_refused_is_counted_and_a_create_stays_one() -> None:
    store = chaos(1, {"create": {"duplicate": 1.0}})
    store.create("k", b"first")
    store.deliver_all()
    assert store.injected["duplicate_refused"] == 1
    assert store.inner.get("k") == b"first"


def test_a_duplicate_part_carries_the_bytes_as_they_were_sent() -> None:
    store = chaos(1, {"upload_part": {"duplicate": 1.0}})
    upload = store.begin_upload("k", part_size=100)
    buffer = bytearray(b"first")
    part = store.upload_part(upload, 1, memoryview(buffer))
    buffer[:] = b"other"
    store.deliver_all()
    store.finish_upload(upload, [part])
    assert store.get("k") == b"first"


def test_torn_and_truncated_reads() -> None:
    torn, truncated = chaos(1, {"torn_read": 1.0}), chaos(1, {"truncated": 1.0})
    for store in (torn, truncated):
        store.inner.put("k", b"0123456789")
    with pytest.raises(Unavailable):
        torn.get("k")
    assert b"0123456789".startswith(truncated.get("k"))
    assert len(truncated.get("k")) < 10


def test_delays_are_bounded_and_slept() -> None:
    slept: list[float] = []
    store = ChaosStore(MemoryStore(), 1, {"delay": 1.0}, delay_seconds=2.0, sleep=slept.append)
    for _ in range(50):
        store.put("k", b"x")
    assert len(slept) == 50
    assert 0 <= min(slept) < max(slept) <= 2.0


def test_the_clock_offset_is_in_every_time() -> None:
    inner = MemoryStore(clock=lambda: 1000.0)
    store = ChaosStore(inner, 1, {}, clock_offset=30.0)
    assert store.create("k", b"x").last_modified == 1030.0
    assert store.put("k", b"x").last_modified == store.head("k").last_modified == store.server_time() == 1030.0
    (page,) = store.list()
    assert page.server_time == page.objects[0].last_modified == 1030.0
    upload = store.begin_upload("u", part_size=10)
    assert [pending.started for pending in store.list_uploads()] == [1030.0]
    assert store.finish_upload(upload, [store.upload_part(upload, 1, b"x")]).last_modified == 1030.0
    assert inner.head("k").last_modified == 1000.0


def test_rates_by_verb_win_over_rates_for_all() -> None:
    store = chaos(1, {"get": {"lost_request": 0.0}, "lost_request": 1.0})
    store.inner.put("k", b"x")
    assert store.get("k") == b"x"
    with pytest.raises(Unavailable):
        store.head("k")


@pytest.mark.parametrize("rates", [{"lost": 0.1}, {"get": {"conflict": 0.1}}, {"head": {"truncated": 0.1}}, {"got": {"delay": 0.1}}])
def test_unknown_faults_are_refused(rates: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match="chaos"):
        chaos(1, rates)


def test_a_spec_from_the_environment() -> None:
    store = from_spec(MemoryStore(clock=lambda: 0.0), "seed=7, lost_answer=0.5,create.conflict=1,clock_offset=5")
    assert store.clock_offset == 5
    with pytest.raises(Conflict):
        store.create("k", b"x")
    with pytest.raises(RecipeError, match="seed=x"):
        from_spec(MemoryStore(), "seed=x")


def test_every_verb_can_fail() -> None:
    store = chaos(1, {"lost_request": 1.0})
    upload = store.inner.begin_upload("u", part_size=10)
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: store.create("k", b""),
        "put": lambda: store.put("k", b""),
        "get": lambda: store.get("k"),
        "head": lambda: store.head("k"),
        "list": lambda: list(store.list()),
        "delete": lambda: store.delete(["k"]),
        "begin_upload": lambda: store.begin_upload("k", part_size=1),
        "upload_part": lambda: store.upload_part(upload, 1, b""),
        "finish_upload": lambda: store.finish_upload(upload, []),
        "abort_upload": lambda: store.abort_upload(upload),
        "list_uploads": lambda: list(store.list_uploads()),
        "copy_part": lambda: store.copy_part(upload, 1, "k", 0, 1),
        "server_time": store.server_time,
    }
    assert set(calls) == set(VERBS)
    for verb, call in calls.items():
        with pytest.raises(Unavailable):
            call()
        assert store.injected_by_verb[verb, "lost_request"] == 1
    store.close()


def test_already_exists_passes_through() -> None:
    store = chaos(1, {})
    store.create("k", b"")
    with pytest.raises(AlreadyExists):
        store.create("k", b"")
