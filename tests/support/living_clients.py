"""Which clients of librdkafka live in this process: each has threads and connections."""

import gc

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient


def living_clients() -> dict[int, object]:
    """The clients by their identity; they live at least as long as the answer."""
    kinds = Consumer, Producer, AdminClient
    return {id(one): one for one in gc.get_objects() if issubclass(type(one), kinds)}
