"""What a site remembers a job by: cookies, and the login by a form.

    Set-Cookie ─► cookies: is it kept, and where does it go back? ─► CookieJar, one for a job and domain
                                                                        │
    fetch.logins ─► login: the page ─► its form ─► posted ─► signed in? ─► the jar's next requests

Pure: a step is decided from what was shown, `agents/fetch/logins.py` makes the requests.
"""

from .cookies import NO_ROOM, CookieJar, StoredCookie, cookie_refusal, default_path
from .login import Form, Posted, Session, Shown, Step, Unsent, Visited, form_encoded, is_for_guests, no_login, read_form

__all__ = [
    "NO_ROOM",
    "CookieJar",
    "Form",
    "Posted",
    "Session",
    "Shown",
    "Step",
    "StoredCookie",
    "Unsent",
    "Visited",
    "cookie_refusal",
    "default_path",
    "form_encoded",
    "is_for_guests",
    "no_login",
    "read_form",
]
