"""How a command that `--bootstrap` leads to a local broker gets the broker's password: in its environment."""

from crawlog.streams.settings import Settings, environ_name

LOGIN = ("security_protocol", "sasl_mechanism", "sasl_username", "sasl_password")


def login(settings: Settings) -> dict[str, str]:
    """The variables that hold the credentials of these settings; other users do not see them, as they see arguments."""
    return {environ_name(f"kafka.{name}"): getattr(settings.kafka, name) for name in LOGIN}
