"""`python -m bench.faults`: every fault by its seed, one after the other; the worst of the seeds counts.

    python -m bench.faults                          20,000 pages, 5 seeds a fault: hours of a quiet machine
    python -m bench.faults --faults kill,all --seeds 1
    python -m bench.faults --short                  minutes, all faults that fit; nothing is written
    python -m bench.faults --list                   the faults, and what this machine lacks for some

The outcome of each run but short ones is appended to `bench/faults/outcomes.jsonl` as it comes. It is kept with the
sources, so that seeds add up over days and machines: the table in RESULTS.md is made from the newest of each fault and
seed. A run that stands there with the same commit is not repeated, unless `--again` says so or files differ from the
commit: an interrupted night goes on where it was. A fault that this machine cannot cause leaves no outcome.
"""

import argparse
import json
import signal
import sys
import traceback
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from bench.faults import judge, schedule
from bench.faults.brokers import Bounce, Gone, OneOfThree
from bench.faults.clock import Clock
from bench.faults.crawl import Size
from bench.faults.disks import FullBroker, FullState
from bench.faults.exceptions import Exceptions
from bench.faults.mixed import Mixed
from bench.faults.poison import Poisoned
from bench.faults.power import PowerCut
from bench.faults.processes import Kill, KillAll, LockedZombie, Zombie
from bench.faults.proxy import Proxied
from bench.faults.schedule import Calm, Fault, Outcome
from bench.faults.states import States
from bench.faults.storm import Storm
from bench.faults.topics import Expired, OffsetsLatest, OffsetsLost, Recreated
from bench.results import WITH_CHANGES, commit, machine, section, table, versions
from tests.support.synthetic_site import WORK

FOLDER = WORK / "faults"
OUTCOMES = Path(__file__).with_name("outcomes.jsonl")

LONG = Size(hosts=200, pages=100, delay_s=2.5, latency_s=(0.1, 0.3))
SHORT = Size(hosts=10, pages=20, delay_s=0.5, latency_s=(0.0, 0.05), concurrency=16)

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Calm(), Kill(), KillAll(), Bounce(), Gone(), OneOfThree(), Storm(), Poisoned(), States(), Zombie(),
        LockedZombie(), FullState(), FullBroker(), PowerCut(),
        OffsetsLost(), OffsetsLatest(), Expired(), Recreated(), Clock(), Proxied(), Exceptions(), Mixed(),
    )
}  # fmt: skip

COLUMNS = ("lost", "unrecorded", "doubled", "wrong", "misjudged", "stray", "hurried", "crowded", "robots", "foreign",
           "dead", "counters", "states")  # fmt: skip


def main() -> int:
    """Exit code 1 when anything that was promised was not kept."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended
    asked = _arguments()
    if asked.list:
        list_all()
        return 0
    size = _size(asked)
    outcomes = []
    names = asked.faults.split(",") if asked.faults else list(FAULTS)
    if unknown := [name for name in names if name not in FAULTS]:
        sys.exit(f"no fault {', '.join(unknown)}: there are {', '.join(FAULTS)}")
    for name in names:
        for seed in range(asked.seed, asked.seed + asked.seeds):
            before = None if asked.short or asked.again else known(name, seed, size)
            outcomes.append(before or run(name, seed, size))
            if before is None and not asked.short and not outcomes[-1].skipped:
                keep(outcomes[-1], size)
            tell(outcomes[-1])
    print(report(outcomes))
    if not asked.short:
        publish(size, " ".join(["python -m bench.faults", *sys.argv[1:]]))
    return int(any(not outcome.is_good for outcome in outcomes))


def list_all() -> None:
    """The faults, and what this machine lacks for some."""
    for fault in FAULTS.values():
        lacks = fault.lacks()
        print(f"{fault.name:12}  {fault.says}{f'  (not here: {lacks})' if lacks else ''}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="10 hosts x 20 pages, one seed; nothing is written")
    parser.add_argument("--faults", default="", help="names with commas; all without it")
    parser.add_argument("--seeds", type=int, default=0, help="runs of each fault (5; short: 1)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    for name in ("hosts", "pages"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0, help="rest of a host between two requests, seconds")
    parser.add_argument("--again", action="store_true", help="repeat what is known")
    parser.add_argument("--list", action="store_true", help="say which faults there are")
    asked = parser.parse_args()
    asked.seeds = asked.seeds or (1 if asked.short else 5)
    return asked


def _size(asked: argparse.Namespace) -> Size:
    size = SHORT if asked.short else LONG
    return replace(
        size,
        hosts=asked.hosts or size.hosts,
        pages=asked.pages or size.pages,
        delay_s=asked.delay or size.delay_s,
    )


# --- outcomes -------------------------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """The machine, commit and day of an outcome."""

    commit: str
    machine: str


def known(name: str, seed: int, size: Size) -> Outcome | None:
    """The outcome of a run that was made already, of this commit and size; none if files differ from the commit."""
    if (here := commit()).endswith(WITH_CHANGES):
        return None
    of = {(outcome.fault, outcome.seed): outcome for origin, outcome in kept(size) if origin.commit == here}
    return of.get((name, seed))


def kept(size: Size) -> list[tuple[Origin, Outcome]]:
    """Where each run of a size was made, and its outcome, in the order they were made."""
    lines = OUTCOMES.read_text().splitlines() if OUTCOMES.exists() else []
    runs = [one for one in map(json.loads, lines) if one.pop("size") == _as_text(size)]
    return [(Origin(one.pop("commit"), one.pop("machine")), Outcome(**one)) for one in runs]


def run(name: str, seed: int, size: Size) -> Outcome:
    """The outcome of one run; a harness that fails is one too."""
    print(f"── {name}, seed {seed}: {FAULTS[name].says}", file=sys.stderr, flush=True)
    try:
        return schedule.run(FAULTS[name], seed, size, FOLDER / f"{name}-{seed}")
    except Exception as error:  # noqa: BLE001  # a night of faults goes on with the next one
        traceback.print_exc()
        counts = dict.fromkeys(judge.CHECKS, -1)
        problem = f"the harness failed: {type(error).__name__}: {error}".splitlines()[0]
        return Outcome(name, seed, size.hosts, size.pages, 0.0, 0, 0, 0, 0.0, 0, counts, {}, [problem])


def keep(outcome: Outcome, size: Size) -> None:
    """Appends an outcome to those that are kept."""
    line = {**Origin(commit(), machine())._asdict(), "size": _as_text(size), **asdict(outcome)}
    with OUTCOMES.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _as_text(size: Size) -> str:
    return f"{size.hosts}x{size.pages} {size.delay_s} {size.latency_s[0]}-{size.latency_s[1]}"


def tell(outcome: Outcome) -> None:
    """One line at once, for a person who watches."""
    head = f"   {outcome.fault} seed {outcome.seed}: "
    if outcome.skipped:
        print(f"{head}skipped, {outcome.skipped}", file=sys.stderr, flush=True)
        return
    verdict = "kept" if outcome.is_good else "NOT KEPT"
    figures = ", ".join(f"{name} {value}" for name, value in outcome.figures.items())
    hits = f"{outcome.faults} faults, {outcome.again_percent} % again"
    print(
        f"{head}{verdict} in {outcome.took_s:.0f} s, {hits}  {figures}",
        *(f"      {problem}" for problem in outcome.problems),
        sep="\n",
        file=sys.stderr,
        flush=True,
    )


def report(outcomes: Iterable[Outcome]) -> str:
    """The worst of the seeds, a line a fault; below it broken promises and skipped faults."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.fault, []).append(outcome)
    ran = {name: [one for one in group if not one.skipped] for name, group in groups.items()}
    head = ("fault", "seeds", "hits", "s", *COLUMNS, "raw", "again %")
    told = table(head, [_row(name, group) for name, group in ran.items() if group])
    figures = [
        f"- {name}: " + ", ".join(f"{title} {max(one.figures[title] for one in group):g}" for title in group[0].figures)
        for name, group in ran.items()
        if group and all(one.figures.keys() == group[0].figures.keys() for one in group) and group[0].figures
    ]
    figures += _throughput(ran)
    notes = [f"- {name}: skipped, {group[0].skipped}" for name, group in groups.items() if group[0].skipped]
    notes += [f"- NOT KEPT {one.fault} seed {one.seed}: {what}" for group in ran.values() for one in group
              for what in one.problems]  # fmt: skip
    what = [f"- `{name}`: {FAULTS[name].says}" for name in groups]
    return "\n\n".join("\n".join(part) for part in ([told], figures, notes, what) if part)


def _row(name: str, group: list[Outcome]) -> list[str]:
    worst = {check: max(one.counts[check] for one in group) for check in judge.CHECKS}
    cells = [f"{worst[column]:,}" if worst[column] >= 0 else "–" for column in COLUMNS]
    numbers = [name, str(len(group)), str(min(one.pending for one in group)), f"{max(o.took_s for o in group):.0f}"]
    return [*numbers, *cells, f"{max(o.raw_doubles for o in group):,}", f"{max(o.again_percent for o in group):.2f}"]


def _throughput(ran: dict[str, list[Outcome]]) -> list[str]:
    """The storm's pages a second beside the calm run's: the worst of the seeds, each with its own graph's calm run."""
    calm = {one.seed: one.took_s for one in ran.get(Calm.name, ())}
    shares = [calm[one.seed] / one.took_s for one in ran.get(Storm.name, ()) if one.seed in calm]
    if not shares:
        return []
    of = f"of the pages a second of the same seed's calm run, the worst of {len(shares)} seeds"
    return [f"- storm: {100 * min(shares):.0f} % {of}"]


def publish(size: Size, command: str) -> None:
    """Writes the section of RESULTS.md from the newest outcome of each fault and seed, whichever command made it."""
    runs = [(origin, outcome) for origin, outcome in kept(size) if outcome.fault in FAULTS]
    newest = {(outcome.fault, outcome.seed): (origin, outcome) for origin, outcome in runs}
    if not newest:
        return
    outcomes = [newest[at][1] for at in sorted(newest, key=lambda at: (list(FAULTS).index(at[0]), at[1]))]
    of = f"{size.hosts} hosts x {size.pages} paths"
    facts = {
        "run": f"`{command}`; seeds {min(o.seed for o in outcomes)}–{max(o.seed for o in outcomes)}, worst of them",
        "machine": "; ".join(sorted({origin.machine for origin, _ in newest.values()})),
        "commits": ", ".join(sorted({origin.commit for origin, _ in newest.values()})),
        "site": f"{of}, {size.latency_s[0]}–{size.latency_s[1]} s latency, "
        f"{size.delay_s} s delay, {size.fetch} fetch workers",
        "columns": "requests, results or places that broke a promise; raw: records in crawl.items beyond one a key",
        **versions(("crawlog", "faust-streaming", "aiokafka", "confluent-kafka", "rocksdict")),
    }
    section(f"faults {size.hosts}x{size.pages}", f"Faults, {of}", report(outcomes), facts)


def path_of(outcome: Outcome) -> Path:
    """Folder of a run that broke a promise."""
    return FOLDER / f"{outcome.fault}-{outcome.seed}"


if __name__ == "__main__":
    sys.exit(main())
