"""The run's token: every call to the lighthouse carries it, and nothing is answered without it.

The token is a shared secret in a file. It keeps strangers and other jobs away from a run; it does not encrypt. The
standard health check asks for it too: a probe sends it as metadata, "authorization: Bearer TOKEN".
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import grpc


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


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Ends every call that does not carry the token with UNAUTHENTICATED, before any of our code sees it."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        handler = await continuation(handler_call_details)
        if handler is None or self._accepts(handler_call_details):
            return handler
        return _refusing(handler)

    def _accepts(self, details: grpc.HandlerCallDetails) -> bool:
        said = [value for key, value in details.invocation_metadata or () if key == "authorization"]
        given = said[0] if len(said) == 1 else ""
        return hmac.compare_digest(given if isinstance(given, bytes) else given.encode(), self._expected)


def _refusing(handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
    async def refuse(_: Any, context: grpc.aio.ServicerContext) -> NoReturn:
        await context.abort(
            grpc.StatusCode.UNAUTHENTICATED,
            "the call carries no token, or not the one of this lighthouse: use the lighthouse's own token file",
        )
        raise AssertionError("abort returned")

    makers = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    return makers[handler.request_streaming, handler.response_streaming](refuse)
