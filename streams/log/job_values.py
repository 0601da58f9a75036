"""The values in a job's record, by the keys of the settings that they are made of."""

from crawlog.schemas.urls import JobSpec

from .job_records import _settings_of


def job_values(spec: JobSpec) -> dict[str, object]:
    """All values of a record, by dotted key; of a secret only whether it is given."""
    return _settings_of(spec)
