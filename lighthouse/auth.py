"""The run's token: every call to the lighthouse carries it, and nothing is answered without it.

The token is a shared secret in a file. It keeps strangers and other jobs away from a run; it does not encrypt. The
standard health check asks for it too: a probe sends it as metadata, "authorization: Bearer TOKEN".
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from pathlib import Path


class TokenError(Exception):
    """The token file cannot be used; the message says what to change."""


def read_token(path: Path) -> str:
    """The token in the file, without surrounding white space. Raises TokenError."""
    try:
        token = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(f"token file {path}: {error}: give a readable file with one line of ASCII text") from error
    if not token or any(c.isspace() for c in token):
        raise TokenError(f"token file {path}: holds no token: write one there, such as 32 random hexadecimal digits")
    return token


def token_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """The call metadata that carries the token; none for an empty token."""
    return (("authorization", f"Bearer {token}"),) if token else ()


ACCEPTED = ("accepted", "1")
"""What a session that is let in is told before anything is said in it; one that is refused is not."""
NO_TOKEN = "the call carries no token, or not the one of this lighthouse: use the lighthouse's own token file"


def carries_token(metadata: Iterable[tuple[str, str | bytes]], token: str) -> bool:
    """Whether a call with this metadata carries the token, once; with an empty token any does."""
    said = [value for key, value in metadata if key == "authorization"]
    given = said[0] if len(said) == 1 else ""
    expected = f"Bearer {token}".encode()
    return not token or hmac.compare_digest(given if isinstance(given, bytes) else given.encode(), expected)
