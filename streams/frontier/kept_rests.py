"""How long the hosts of a partition rest, kept while a rebalance takes the partition away and gives it back.

A worker that takes a partition over lets each host rest one full delay, since the requests of a crashed owner left no
trace. But a rebalance takes all partitions from all workers, and most come back to the same one. Then no other worker
can have asked their hosts, provided the group's generation has only counted up by one.
"""

from collections.abc import Mapping


class KeptRests:
    """Rests of the hosts of given-up partitions, until the partitions come back or another generation owns them."""

    def __init__(self) -> None:
        self._generation = -1
        self._rests: dict[int, Mapping[int, float]] = {}

    def assigned(self, generation: int, partitions: set[int]) -> None:
        """This worker owns these partitions from this generation of the group on."""
        follows = generation == self._generation + 1
        kept = self._rests.items() if follows else ()
        self._rests = {partition: rests for partition, rests in kept if partition in partitions}
        self._generation = generation

    def is_kept(self, partition: int) -> bool:
        """Whether no other worker can have owned a given-up partition since."""
        return partition in self._rests

    def given_up(self, partition: int, rests: Mapping[int, float]) -> None:
        """Keep the rests of a partition without requests in flight: times by the host's hash."""
        self._rests[partition] = rests

    def taken_up(self, partition: int) -> Mapping[int, float] | None:
        """Take the rests back; None where another worker may have asked the hosts since."""
        return self._rests.pop(partition, None)
