"""What a job's user is told of its pages as they are parsed: those that gave no row, and cookies that were dropped."""

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.progress import JobRemarks
from crawlog.streams.spiders import Parsed, is_followed, is_redirect

from .job import Job

MAX_URL_CHARS = 300
"""Longest URL in a remark: a report names up to 50 jobs."""


def remarked(before: JobRemarks | None, job: Job, meta: PageMeta, parsed: Parsed) -> JobRemarks | None:
    """The remarks on a job with one more page; None without any. A new epoch begins with none."""
    is_rowless = is_followed(meta) and not is_redirect(meta) and not parsed.items
    if not is_rowless and not drops_cookie(job, meta):
        return before
    if before is None or before.epoch != meta.epoch:
        before = JobRemarks(meta.epoch)
    url = meta.url[:MAX_URL_CHARS]
    return JobRemarks(
        meta.epoch,
        before.rowless + is_rowless,
        before.first_rowless or url * is_rowless,
        before.lost_cookie or url * drops_cookie(job, meta),
    )


def drops_cookie(job: Job, meta: PageMeta) -> bool:
    """Whether the answer to a form sets a cookie that the job does not keep: a login would be lost."""
    rules, request = job.spec.requests, meta.request
    if rules is None or rules.cookies or request is None or request.method.upper() != "POST":
        return False
    return request.keeps_cookies and any(name.lower() == "set-cookie" for name, _ in meta.headers)
