"""A provider of OpenID Connect, made with authlib: authorization code with PKCE, and signed ID tokens."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import grants
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core import OpenIDCode, UserInfo
from flask import Flask, jsonify, request
from joserfc.jwk import RSAKey

CLIENT, SECRET = "penstock", "a secret of the provider: %&"


@dataclass
class Client:
    redirects: set[str]
    client_id: str = CLIENT
    id_token_signed_response_alg: str = "RS256"

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> None:
        return None

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, uri: str) -> bool:
        return uri in self.redirects

    def check_client_secret(self, secret: str) -> bool:
        return secret == SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == "client_secret_basic"

    def check_response_type(self, kind: str) -> bool:
        return kind == "code"

    def check_grant_type(self, kind: str) -> bool:
        return kind == "authorization_code"


@dataclass
class Code:
    code: str
    redirect_uri: str
    scope: str
    nonce: str | None
    code_challenge: str | None
    code_challenge_method: str | None

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_nonce(self) -> str | None:
        return self.nonce

    def get_auth_time(self) -> int:
        return int(time.time())

    def get_acr(self) -> None:
        return None

    def get_amr(self) -> None:
        return None


@dataclass
class Provider:
    url: str = ""
    account: dict[str, Any] = field(default_factory=dict)
    """The claims of whoever signs in next."""
    redirects: set[str] = field(default_factory=set)
    codes: dict[str, Code] = field(default_factory=dict)
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "one", "alg": "RS256", "use": "sig"}))
    issuer: str = ""
    """What it writes into tokens; by default its URL."""


def make_app(provider: Provider) -> Flask:
    app = Flask("provider")
    app.secret_key = "x"

    def find(client_id: str) -> Client | None:
        return Client(provider.redirects) if client_id == CLIENT else None

    server = AuthorizationServer(app, query_client=find, save_token=lambda token, request: None)

    class CodeGrant(grants.AuthorizationCodeGrant):  # type: ignore[misc]
        TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic",)

        def save_authorization_code(self, code: str, request: Any) -> None:
            asked = request.payload.data
            provider.codes[code] = Code(
                code, request.payload.redirect_uri, request.payload.scope, asked.get("nonce"),
                asked.get("code_challenge"), asked.get("code_challenge_method"),
            )  # fmt: skip

        def query_authorization_code(self, code: str, client: Client) -> Code | None:
            return provider.codes.get(code)

        def delete_authorization_code(self, code: Code) -> None:
            del provider.codes[code.code]

        def authenticate_user(self, code: Code) -> dict[str, Any]:
            return provider.account

    class IdToken(OpenIDCode):  # type: ignore[misc]
        def exists_nonce(self, nonce: str, request: Any) -> bool:
            return any(code.nonce == nonce for code in provider.codes.values())

        def resolve_client_private_key(self, client: Client) -> RSAKey:
            return provider.key

        def get_encode_header(self, client: Client) -> dict[str, str]:
            return {"alg": "RS256", "kid": "one"}

        def get_client_claims(self, client: Client) -> dict[str, Any]:
            return {"iss": provider.issuer or provider.url, "aud": [client.get_client_id()]}

        def generate_user_info(self, user: dict[str, Any], scope: str) -> UserInfo:
            return UserInfo(**user)

    server.register_grant(CodeGrant, [CodeChallenge(required=True), IdToken(require_nonce=True)])

    @app.get("/.well-known/openid-configuration")
    def configuration() -> Any:
        ends = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
        return jsonify({"issuer": provider.url, **{name: f"{provider.url}/{end}" for name, end in ends.items()}})

    @app.get("/jwks")
    def jwks() -> Any:
        return jsonify({"keys": [provider.key.as_dict(private=False)]})

    @app.get("/authorize")
    def authorize() -> Any:
        """Whoever comes is signed in already, and agrees."""
        grant = server.get_consent_grant(end_user=provider.account)
        return server.create_authorization_response(grant_user=provider.account, grant=grant)

    @app.post("/token")
    def token() -> Any:
        assert request.form["grant_type"] == "authorization_code"
        return server.create_token_response()

    return app


class _Quiet(WSGIRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def a_provider() -> Iterator[Provider]:
    provider = Provider()
    server = make_server("127.0.0.1", 0, make_app(provider), handler_class=_Quiet)
    provider.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
