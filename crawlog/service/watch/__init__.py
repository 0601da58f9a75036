"""What the service sees over time: the history of rates and lag, and alerts that are raised and cleared.

FleetView, every 10 s ─► samples    what all stages, and each busy job, did since the last look
                           ├─► history  SQLite of this service: 10 s for some hours, 5 min for a week ─► /api/v1/history
                           └─► alerts   rules ─► raised, cleared ─► /api/v1/alerts, `service.alert` (calls)
      watcher   does it in its task beside the service's requests

Each copy of the service has its own history, and calls for itself.
"""

from .alerts import Alert, AlertLook, Alerts, ended_badly, findings
from .history import RateHistory
from .recent import Recent
from .samples import FLEET_SERIES, JOB_SERIES, SeriesAnswer
from .watcher import HISTORY, WATCHER, Watcher, prepare

__all__ = [
    "FLEET_SERIES",
    "HISTORY",
    "JOB_SERIES",
    "WATCHER",
    "Alert",
    "AlertLook",
    "Alerts",
    "RateHistory",
    "Recent",
    "SeriesAnswer",
    "Watcher",
    "ended_badly",
    "findings",
    "prepare",
]
