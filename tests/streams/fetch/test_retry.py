"""Again or the end, and how long the host rests: as tables."""

import msgspec
import pytest

from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import RequestRules
from crawlog.streams.fetch.retry import MOST_S, Again, Retrying, may_pass
from crawlog.streams.frontier.host import Host
from crawlog.streams.http.answer import Answer
from crawlog.streams.requests.request_rules import RequestPolicy

NOW = 1_700_000_000.0
RETRYING = Retrying(lambda: 0.5)
RULES = RequestRules(
    attempts=3,
    retry_delay_s=2.0,
    max_delay_s=60.0,
    retry_statuses=(408, 425, 429, 500, 502, 503, 504, 522, 524),
    repeat_posts=True,
)
THRICE = RequestPolicy(RULES)


def answered(http: int | None, error: str = "", **more: object) -> Answer:
    """An answer with such facts."""
    answer = Answer(http, error)
    for name, value in more.items():
        setattr(answer, name, value)
    return answer


def host(failures: int = 0) -> Host:
    """A host that turned so many requests in a row away."""
    one = Host("http://a.com:80", "a.com", None, 1.0)  # type: ignore[arg-type]  # no queue
    one.failures = failures
    return one


@pytest.mark.parametrize(
    ("answer", "again"),
    [
        (answered(200), False),
        (answered(200, "chunk_timeout"), True),
        (answered(206, "connection_reset"), True),
        (answered(200, "too_large"), False),
        (answered(200, "bad_encoding"), False),
        (answered(302), False),
        (answered(302, is_cookie_check=True), True),
        (answered(404), False),
        (answered(404, "timeout"), False),
        *((answered(status), True) for status in (408, 425, 429, 500, 502, 503, 504, 522, 524)),
        (answered(503, "bad_encoding"), True),
        (answered(429, "too_large"), True),
        (answered(403, "bad_encoding"), False),
        (answered(501), False),
        (answered(304), True),
        (answered(304, same_as=(0, 7), is_conditional=True), False),
        (answered(412), False),
        (answered(412, is_conditional=True), True),
        (answered(None, "dns"), True),
        (answered(None, "header_too_large"), False),
        (answered(None, "too_many_headers"), False),
        (answered(None, "private_address: loopback", private=True), False),
    ],
)
def test_what_may_end_otherwise_is_tried_again(answer: Answer, again: bool) -> None:
    """A page that broke off is not the page."""
    assert may_pass(answer) is again
    assert (RETRYING.again(answer, 1, 0.0, THRICE) is not None) is again


@pytest.mark.parametrize(
    ("answer", "attempt", "rest_s", "again"),
    [
        (answered(503), 1, 0.0, Again("http_503", 2.0)),
        (answered(503), 2, 0.0, Again("http_503", 4.0)),
        (answered(503), 3, 0.0, None),
        (answered(503), 1, 30.0, Again("http_503", 30.0)),
        (answered(None, "dns"), 1, 0.0, Again("dns", 2.0)),
        (answered(200, "chunk_timeout"), 1, 0.0, Again("chunk_timeout", 2.0)),
        (answered(None, "proxy", by_proxy=True, again_s=9.0), 1, 0.0, Again("proxy", 9.0)),
        (answered(302, is_cookie_check=True), 1, 0.0, Again("cookie_check", 0.0)),
        (answered(302, is_cookie_check=True), 2, 7.0, Again("cookie_check", 7.0)),
        (answered(302, is_cookie_check=True), 3, 0.0, None),
    ],
)
def test_the_next_attempt_waits_for_the_longest_of_its_reasons(
    answer: Answer, attempt: int, rest_s: float, again: Again | None
) -> None:
    """Back-off, the host's rest, the proxy's; a cookie check waits for the rest only. The last attempt is final."""
    assert RETRYING.again(answer, attempt, rest_s, THRICE) == again


def test_a_job_names_the_statuses_that_are_tried_again() -> None:
    """And no other is."""
    policy = RequestPolicy(msgspec.structs.replace(RULES, retry_statuses=(403,)))
    again = [RETRYING.again(answered(http), 1, 0.0, policy) is not None for http in (403, 503, 404)]
    assert again == [True, False, False]


POST = RequestRecord("POST", body=b"a=1")


@pytest.mark.parametrize(
    ("request_", "repeats", "again"),
    [
        (POST, True, {"unsent", "broken", "503", "proxy"}),
        (POST, False, {"unsent"}),
        (RequestRecord("patch"), False, {"unsent"}),
        (RequestRecord("GET"), False, {"unsent", "broken", "503", "proxy"}),
        (RequestRecord("put"), False, {"unsent", "broken", "503", "proxy"}),
        (RequestRecord("GET", once=True), True, {"unsent"}),
        (RequestRecord("POST", once=True), True, {"unsent"}),
        (None, False, {"unsent", "broken", "503", "proxy"}),
    ],
)
def test_what_may_have_been_received_is_not_repeated_where_that_matters(
    request_: RequestRecord | None, repeats: bool, again: set[str]
) -> None:
    """A POST or PATCH, if the job says so, and a request that is sent once. What never left may leave again."""
    policy = RequestPolicy(msgspec.structs.replace(RULES, repeat_posts=repeats))
    answers = {
        "unsent": answered(None, "connection_refused"),
        "broken": answered(None, "disconnected"),
        "503": answered(503),
        "proxy": answered(None, "proxy", by_proxy=True),
    }
    assert {
        name for name, answer in answers.items() if RETRYING.again(answer, 1, 0.0, policy, request_) is not None
    } == again


@pytest.mark.parametrize("follows", [True, False])
def test_a_redirect_that_a_callback_wants_is_no_check_for_cookies(follows: bool) -> None:
    """One that sets a cookie and leads to its own URL."""
    answer, request = answered(302, is_cookie_check=True), RequestRecord(follows=follows)
    assert (RETRYING.again(answer, 1, 0.0, THRICE, request) is not None) == follows


@pytest.mark.parametrize(
    ("name", "again"), [("If-None-Match", False), ("if-modified-since", False), ("If-Match", True), ("X-A", True)]
)
def test_a_304_that_a_request_asked_for_itself_is_final(name: str, again: bool) -> None:
    """To any other request it says nothing."""
    request = RequestRecord(headers=((name, '"a"'),))
    assert (RETRYING.again(answered(304), 1, 0.0, THRICE, request) is not None) == again


def test_a_back_off_ends_at_an_hour() -> None:
    """However many attempts there are."""
    many = RequestPolicy(msgspec.structs.replace(RULES, attempts=20))
    assert RETRYING.again(answered(503), 19, 0.0, many) == Again("http_503", MOST_S)


@pytest.mark.parametrize(
    ("answer", "failures", "rest_s", "left"),
    [
        (answered(200), 4, 0.0, 0),
        (answered(404), 4, 0.0, 0),
        (answered(500), 4, 0.0, 0),
        (answered(429), 0, 2.0, 1),
        (answered(503), 1, 4.0, 2),
        (answered(503), 30, 60.0, 31),
        (answered(503, retry_after="20"), 0, 20.0, 1),
        (answered(503, retry_after="1"), 0, 2.0, 1),
        (answered(503, retry_after="86400"), 0, 60.0, 1),
        (answered(200, retry_after="20"), 0, 0.0, 0),
        (answered(None, "timeout"), 0, 2.0, 1),
        (answered(None, "disconnected"), 1, 4.0, 2),
        (answered(None, "private_address: loopback", private=True), 3, 0.0, 0),
        (answered(None, "proxy", by_proxy=True), 3, 0.0, 3),
        (answered(None, "bad_http"), 3, 0.0, 0),
        (answered(None, "header_too_large"), 3, 0.0, 0),
        (answered(None, "too_many_headers"), 3, 0.0, 0),
    ],
)
def test_a_host_rests_when_it_turns_requests_away(answer: Answer, failures: int, rest_s: float, left: int) -> None:
    """As long as it asks for, within the limit; also when it is silent.

    One that answers what nobody can read is not silent, and a failed proxy tells nothing of it.
    """
    one = host(failures)
    assert RETRYING.rest_s(one, answer, NOW, THRICE, one.round) == rest_s
    assert one.failures == left


def rests(one: Host, in_round: int, *answers: Answer) -> list[float]:
    """The rests of a host after answers to requests of a round."""
    return [RETRYING.rest_s(one, answer, NOW, THRICE, in_round) for answer in answers]


def test_requests_in_flight_that_fail_together_are_one_failure_in_a_row() -> None:
    """The next round rests twice as long; a late answer of the first one rests as long as those around it."""
    one = host()
    assert rests(one, 0, *[answered(503)] * 4, answered(503, retry_after="20")) == [2.0] * 4 + [20.0]
    assert rests(one, 1, *[answered(None, "timeout")] * 4) == [4.0] * 4
    assert rests(one, 0, answered(503)) == [4.0]


def test_a_good_answer_among_those_that_fail_together_begins_the_count_anew() -> None:
    """The others of its round are then the first failure, however many they are."""
    one = host(failures=4)
    assert rests(one, 0, answered(503), answered(200), answered(503), answered(503)) == [32.0, 0.0, 2.0, 2.0]
    assert rests(one, 1, answered(503)) == [4.0]
