"""Signing in with an account of an OpenID Connect provider: authorization code with PKCE. The claims of the account say
which owner it belongs to and what it may do."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec

from penstock.app import App
from penstock.config import check_name, check_url
from penstock.config_serve import OidcConfig
from penstock.errors import ConfigError, NotAuthenticated, PenstockError
from penstock.model.callers import KeyScope
from penstock.verbs.authentication import Authenticator, Session
from penstock.verbs.keys import SESSION_S

if TYPE_CHECKING:
    from penstock.net.client import Client

COOKIE = "penstock_oidc"
CALLBACK = "/login/oidc/callback"
PENDING_S = 600.0
"""How long a sign-in may take."""
METADATA_S = 3600.0
LEEWAY_S = 60
TIMEOUT_S = 10.0
LONGEST = 64 << 10
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""None that is made with a secret which the client knows."""


class Pending(msgspec.Struct, frozen=True):
    """A sign-in that has begun. The browser keeps it in a signed cookie."""

    state: str
    nonce: str
    verifier: str
    onward: str
    until: float


class _Provider(msgspec.Struct, frozen=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


class Oidc:
    def __init__(self, app: App, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator
        self.settings: OidcConfig = app.config.serve.oidc
        self._client: Client | None = None
        self._provider: tuple[float, _Provider] | None = None
        self._keys: dict[str, Any] | None = None

    @property
    def is_on(self) -> bool:
        return bool(self.settings.issuer)

    async def begin(self, onward: str, base: str) -> tuple[str, str]:
        """Return the URL of the provider where the user signs in, and the value of the cookie."""
        provider = await self._discovered()
        runtime = self._app.runtime
        pending = Pending(runtime.secret(), runtime.secret(), runtime.secret(), onward, runtime.now() + PENDING_S)
        challenge = _base64(hashlib.sha256(pending.verifier.encode()).digest())
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self._redirect(base),
            "scope": " ".join(self.settings.request_scopes),
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        mark = "&" if "?" in provider.authorization_endpoint else "?"
        return f"{provider.authorization_endpoint}{mark}{urlencode(asked)}", self._sealed(pending)

    async def finish(self, given: Mapping[str, str], cookie: str, base: str) -> tuple[Session, str]:
        """Exchange the code for a browser session. Return it with the path to continue at. Raise NotAuthenticated if
        the account may not sign in."""
        pending = self._opened(cookie)
        if pending is None or not hmac.compare_digest(given.get("state", "").encode(), pending.state.encode()):
            raise NotAuthenticated("the sign-in was not begun in this browser, or took too long: begin again")
        if "error" in given or not given.get("code"):
            raise NotAuthenticated(f"the provider refused: {given.get('error', 'it sent no code')[:100]}")
        claims = await self._claims(given["code"], pending, base)
        owner, scopes = self._mapped(claims)
        who = str(claims.get("email") or claims["sub"])[:200]
        scope = self._app.for_owner(owner, f"oidc:{who}")
        # The session ends with this key, which nobody sees. An admin can revoke it.
        key = await scope.create_key(scopes=scopes, name=f"oidc {who}"[:200], expires_s=SESSION_S)
        return await self._authenticator.open_session(key.secret, f"oidc {who}"[:200]), pending.onward

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _claims(self, code: str, pending: Pending, base: str) -> Mapping[str, Any]:
        """The verified claims of the ID token."""
        provider, settings = await self._discovered(), self.settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect(base),
            "code_verifier": pending.verifier,
        }
        secret = f"{quote(settings.client_id, safe='')}:{quote(settings.client_secret, safe='')}"
        headers = {
            "Authorization": f"Basic {base64.b64encode(secret.encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        answer = await self._json("POST", provider.token_endpoint, headers, urlencode(form).encode())
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise NotAuthenticated("the provider sent no ID token")
        try:
            return self._verified(token, await self._key_set(provider), pending.nonce)
        except NotAuthenticated:
            # The provider may have new keys.
            self._keys = None
            return self._verified(token, await self._key_set(provider), pending.nonce)

    def _verified(self, token: str, keys: dict[str, Any], nonce: str) -> Mapping[str, Any]:
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        options = {
            "iss": {"essential": True, "value": self.settings.issuer},
            "aud": {"essential": True, "value": self.settings.client_id},
            "nonce": {"essential": True, "value": nonce},
        }
        try:
            found = jwt.decode(token, KeySet.import_key_set(keys), algorithms=list(ALGORITHMS))  # type: ignore[arg-type]
            params = {"nonce": nonce, "client_id": self.settings.client_id}
            claims: Any = _core().CodeIDToken(found.claims, found.header, options, params)
            claims.validate(now=int(self._app.runtime.now()), leeway=LEEWAY_S)
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise NotAuthenticated(f"the ID token is not valid ({type(error).__name__})") from None
        return dict(claims)

    def _mapped(self, claims: Mapping[str, Any]) -> tuple[str, list[str]]:
        """The owner and the scopes of an account."""
        owners = [self.settings.owners[one] for one in _texts(claims.get(self.settings.owner_claim))
                  if one in self.settings.owners]  # fmt: skip
        if len(set(owners)) != 1:
            raise NotAuthenticated("the account belongs to no owner here: ask the operator (serve.oidc.owners)")
        groups = _texts(claims.get(self.settings.scopes_claim))
        scopes = sorted({scope for group in groups for scope in self.settings.grants.get(group, ())})
        if not scopes:
            raise NotAuthenticated("the account may do nothing here: ask the operator (serve.oidc.grants)")
        return owners[0], scopes

    async def _discovered(self) -> _Provider:
        now = self._app.runtime.clock()
        if self._provider is None or now - self._provider[0] > METADATA_S:
            url = f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                found = msgspec.convert(await self._json("GET", url), _Provider)
                for one in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri):
                    check_url(one)
            except (msgspec.ValidationError, ConfigError):
                raise NotAuthenticated("the provider does not describe itself: check serve.oidc.issuer") from None
            if found.issuer != self.settings.issuer:
                raise NotAuthenticated("the provider has another name: check serve.oidc.issuer")
            self._provider = (now, found)
        return self._provider[1]

    async def _key_set(self, provider: _Provider) -> dict[str, Any]:
        if self._keys is None:
            self._keys = await self._json("GET", provider.jwks_uri)
        return self._keys

    async def _json(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, content: bytes | None = None
    ) -> dict[str, Any]:
        from penstock.net.client import Client, Limits

        if self._client is None:
            # The URLs come from the settings, or from the provider that they name.
            self._client = Client(self._app.runtime, allow_private=True)
        limits = Limits(wait_s=TIMEOUT_S, total_s=TIMEOUT_S, max_bytes=LONGEST)
        try:
            reply = await self._client.request(method, url, headers=headers, content=content, limits=limits)
            if not reply.ok:
                raise NotAuthenticated(f"the provider answered {reply.status}")
            found = msgspec.json.decode(reply.body)
        except NotAuthenticated:
            raise
        except (PenstockError, msgspec.DecodeError) as error:
            raise NotAuthenticated(f"the provider cannot be asked: {error}") from None
        if not isinstance(found, dict):
            raise NotAuthenticated("the answer of the provider is not an object")
        return found

    def _redirect(self, base: str) -> str:
        return f"{(self.settings.public_url or base).rstrip('/')}{CALLBACK}"

    def _sealed(self, pending: Pending) -> str:
        body = _base64(msgspec.json.encode(pending))
        return f"{body}.{self._signature(body)}"

    def _opened(self, cookie: str) -> Pending | None:
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(body).encode()):
            return None
        try:
            data = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
            pending = msgspec.json.decode(data, type=Pending)
        except (binascii.Error, ValueError, msgspec.DecodeError):
            return None
        return pending if self._app.runtime.now() < pending.until else None

    def _signature(self, body: str) -> str:
        key = hashlib.sha256(b"penstock oidc " + self.settings.client_secret.encode()).digest()
        return hmac.new(key, body.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _core() -> Any:
    """What authlib knows of OpenID Connect. Raise ConfigError if the extra is not installed."""
    try:
        return import_module("authlib.oidc.core")
    except ImportError:
        raise ConfigError("serve.oidc needs the extra `oidc`: pip install 'penstock-rag[oidc]'") from None


def check(settings: OidcConfig) -> None:
    """Raise ConfigError if the settings are not complete."""
    if not settings.issuer:
        return
    check_url(settings.issuer)
    missing = [name for name in ("client_id", "client_secret", "owners", "grants") if not getattr(settings, name)]
    if missing:
        raise ConfigError(f"serve.oidc: set {', '.join(missing)}, too")
    unknown = {scope for scopes in settings.grants.values() for scope in scopes} - set(KeyScope)
    if unknown:
        raise ConfigError(f"serve.oidc.grants: {sorted(unknown)[0]!r} is no scope: use some of {', '.join(KeyScope)}")
    for owner in settings.owners.values():
        check_name("owner", owner)
    _core()


def _texts(value: object) -> list[str]:
    given = value if isinstance(value, list) else [value]
    return [one for one in given if isinstance(one, str)]


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
