"""What a worker knows of partitions that a rebalance took and gave back: how long their hosts rest.

Requests of an owner that crashed left no trace, so who takes a partition over lets each host rest one full delay. But a
rebalance takes all partitions from everybody, and most come back to who had them. Nobody else can have asked their
hosts meanwhile if the group has not been through another generation.
"""

from collections.abc import Mapping


class Tenure:
    """Rests of the hosts of partitions that are given up, until they come back or another generation has them."""

    def __init__(self) -> None:
        self._generation = -1
        self._rests: dict[int, Mapping[int, float]] = {}

    def assigned(self, generation: int, partitions: set[int]) -> None:
        """These partitions are ours from this generation of the group on."""
        follows = generation == self._generation + 1
        kept = self._rests.items() if follows else ()
        self._rests = {partition: rests for partition, rests in kept if partition in partitions}
        self._generation = generation

    def given_up(self, partition: int, rests: Mapping[int, float]) -> None:
        """No request of ours to a host of the partition is under way any more; they rest until these times, by hash."""
        self._rests[partition] = rests

    def taken_up(self, partition: int) -> Mapping[int, float] | None:
        """The rests as they were given up; None where somebody else may have asked the hosts since."""
        return self._rests.pop(partition, None)
