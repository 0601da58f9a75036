"""Where offsets go: each target of `kafka-consumer-groups --reset-offsets` against what group and log hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.errors import Misconfigured
from crawlog.streams.groups.commits import HeldRange
from crawlog.streams.groups.offsets import Move, Target, chosen, duration_ms, exported, imported, moment_ms, plan

HELD = HeldRange(committed=50, first=10, end=80)


@pytest.mark.parametrize(
    ("target", "move", "warned"),
    [
        (Target("to-earliest"), Move(0, 50, 10, 10, 50, gone=10), ""),
        (Target("to-latest"), Move(0, 50, 80, 50, 80), ""),
        (Target("to-current"), Move(0, 50, 50, 50, 50), ""),
        (Target("to-offset", 20), Move(0, 50, 20, 20, 50), ""),
        (Target("to-offset", 4), Move(0, 50, 10, 10, 50, gone=6), "New offset (4) is lower than earliest offset"),
        (Target("to-offset", 99), Move(0, 50, 80, 50, 80), "New offset (99) is higher than latest offset"),
        (Target("shift-by", -5), Move(0, 50, 45, 45, 50), ""),
        (Target("shift-by", 5), Move(0, 50, 55, 50, 55), ""),
        (Target("shift-by", -99), Move(0, 50, 10, 10, 50, gone=10), "New offset (-49) is lower"),
        (Target("from-file", offsets={0: 30}), Move(0, 50, 30, 30, 50), ""),
        (Target("to-datetime", 1000), Move(0, 50, 40, 40, 50), ""),
    ],
)
def test_a_target_is_an_offset_in_the_log(target: Target, move: Move, warned: str) -> None:
    """Out of range is clipped and told, as by Kafka's tool; what was trimmed is counted."""
    moves, warnings = plan("t", target, {0: HELD}, {0: 40})
    assert moves == [move]
    assert [warned in warning for warning in warnings] == [True] * bool(warned)


def test_a_time_beyond_the_last_record_is_the_end() -> None:
    """And one before the first record that is left may have meant those that were trimmed."""
    target = Target("by-duration", 1000)
    moves, _ = plan("t", target, {0: HELD, 1: HELD}, {0: -1, 1: 10})
    assert [(move.after, move.gone) for move in moves] == [(80, 0), (10, 10)]


def test_a_group_that_never_was_starts_at_the_first_record() -> None:
    """Earliest is where it would begin anyway; latest skips everything."""
    new = {0: HeldRange(None, 10, 80)}
    assert plan("t", Target("to-earliest"), new)[0] == [Move(0, None, 10, 10, 10, gone=10)]
    (skip,), _ = plan("t", Target("to-latest"), new)
    assert (skip.records, skip.is_skip) == (70, True)
    assert plan("t", Target("to-current"), new)[0][0].after == 80


def test_a_shift_needs_a_commit() -> None:
    """Unless the partition has no record either."""
    with pytest.raises(Misconfigured, match="cannot shift t-1"):
        plan("t", Target("shift-by", -1), {0: HELD, 1: HeldRange(None, 0, 5)})
    assert plan("t", Target("shift-by", -1), {1: HeldRange(None, 0, 0)})[0][0].records == 0


def test_a_file_moves_what_it_names() -> None:
    """The other partitions stay; one that the topic does not have is an error."""
    moves, _ = plan("t", Target("from-file", offsets={1: 20}), {0: HELD, 1: HELD})
    assert [move.partition for move in moves] == [1]
    with pytest.raises(Misconfigured, match=r"partitions \[7\]"):
        plan("t", Target("from-file", offsets={7: 20}), {0: HELD})


@given(
    committed=st.none() | st.integers(0, 100),
    first=st.integers(0, 50),
    more=st.integers(0, 50),
    kind=st.sampled_from(["to-earliest", "to-latest", "to-current", "to-offset", "to-datetime"]),
    number=st.integers(-10, 200),
)
def test_a_plan_stays_in_the_log(committed: int | None, first: int, more: int, kind: str, number: int) -> None:
    """Whatever is asked of whatever is held."""
    held = HeldRange(committed, first, first + more)
    (move,), _ = plan("t", Target(kind, number), {0: held}, {0: number if first <= number < held.end else -1})  # type: ignore[arg-type]  # one of the kinds
    assert held.first <= move.first <= move.end <= held.end
    assert move.after in (move.first, move.end)
    assert 0 <= move.gone <= first


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01.500", 1500),
        ("1970-01-01T00:00:01.500Z", 1500),
        ("1970-01-01T01:00:00.000+01:00", 0),
        ("1970-01-01T01:00:00.000+0100", 0),
        ("1970-01-01T01:00:00.000+01", 0),
        ("1970-01-02T00:00:00", 86_400_000),
        ("1970-01-02", 86_400_000),
    ],
)
def test_a_time_without_a_zone_is_utc(text: str, ms: int) -> None:
    """As for Kafka."""
    assert moment_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT15M", 900_000),
        ("P1DT6H", 108_000_000),
        ("P2D", 172_800_000),
        ("pt0.5s", 500),
        ("PT1.005S", 1005),
        ("-PT1M", -60_000),
        ("PT-6H3M", -21_420_000),
    ],
)
def test_a_duration_is_read_as_java_reads_it(text: str, ms: int) -> None:
    """PnDTnHnMnS, with signs and fractions of a second."""
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "15M", "P1M", "P1Y", "PT1H1D", "PT1.5H"])
def test_other_durations_are_refused(text: str) -> None:
    """Months and years have no length."""
    with pytest.raises(Misconfigured, match="PnDTnHnMnS"):
        duration_ms(text)


@pytest.mark.parametrize("text", ["P36501D", "-P99999999999D", "PT" + "9" * 30 + "S", "P" + "9" * 5000 + "D"])
def test_a_duration_beyond_any_log_is_refused(text: str) -> None:
    """Kafka's times, and Python's, end before."""
    with pytest.raises(Misconfigured, match="by-duration"):
        duration_ms(text)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00", "12:00"])
def test_other_times_are_refused(text: str) -> None:
    """The message shows one that would do."""
    with pytest.raises(Misconfigured, match="2026-01-31T14:00"):
        moment_ms(text)


def test_topics_narrow_to_partitions() -> None:
    """As Kafka's `--topic`: several times, with or without partitions."""
    assert chosen("t", 3, []) == [0, 1, 2]
    assert chosen("t", 3, ["t:2", "t:0,2"]) == [0, 2]
    assert chosen("t", 3, ["t"]) == [0, 1, 2]


@pytest.mark.parametrize(("text", "told"), [("x", "reads t"), ("t:3", "0 to 2"), ("t:a", "t:0,1"), ("t:", "t:0,1")])
def test_a_wrong_topic_is_told(text: str, told: str) -> None:
    """Another one, a partition that is not there, no number."""
    with pytest.raises(Misconfigured, match=told):
        chosen("t", 3, [text])


def test_what_is_exported_can_be_imported() -> None:
    """One group without, several with their names: the two forms of Kafka's tool."""
    moves = [Move(0, 50, 10, 10, 50), Move(1, None, 7, 0, 7)]
    one = exported([("g", "t", moves)])
    assert one == "t,0,10\nt,1,7\n"
    assert imported(one, "g", "t") == {0: 10, 1: 7}
    two = exported([("g", "t", moves), ("h", "t", moves[:1])])
    assert two == "g,t,0,10\ng,t,1,7\nh,t,0,10\n"
    assert imported(two, "h", "t") == {0: 10}
    assert imported('"g","t",0,3\r\n\r\n', "g", "t") == {0: 3}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("t,0\n", "line 1: expected topic,partition,offset"),
        ("t,0,1\nt,a,1\n", "line 2"),
        ("x,0,1\n", "reads t, not x"),
        ("h,t,0,1\n", "no line for the group g"),
        ("", "no line"),
    ],
)
def test_a_wrong_file_is_told(text: str, told: str) -> None:
    """With the line."""
    with pytest.raises(Misconfigured, match=told):
        imported(text, "g", "t")
