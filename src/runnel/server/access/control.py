"""Access control of one server: logins at every listener, reload and revocation, browser sessions and tickets.

What has to hold on every server of one backend is kept in markers of that backend: the key that seals sessions and
tickets, tickets that were used, and tokens and sessions that were revoked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import msgspec

from runnel.core.clock import Timer
from runnel.core.errors import (
    InvalidOption,
    LimitExceeded,
    MarkConflict,
    NotAuthenticated,
    RunnelError,
    TokenExpired,
)
from runnel.core.markers import Marker
from runnel.core.transaction import TransactionRequest
from runnel.security.audit import SecurityEvent, shortened
from runnel.security.policy import AuthPolicy, Identity
from runnel.security.principal import Limits, Principal, administrator
from runnel.security.sealed import KEY_BYTES, TICKET_BYTES, TICKET_SECONDS, Session, Ticket, seal, unseal
from runnel.security.tokens import MAX_TOKEN, StoredToken, changed_tokens, is_opaque, make_token
from runnel.security.usage import FailedLogins
from runnel.server.access.access import Access, Usage
from runnel.server.access.files import AuthFiles, random_bytes
from runnel.server.access.owners import OwnedNames, store_noticed, stored_name
from runnel.server.access.security_log import SecurityLog

if TYPE_CHECKING:
    from runnel.core.backend import Backend

KEY_MARKER = "$access/key"
TICKET_PREFIX = "$access/ticket/"
REVOKED_PREFIX = "$access/revoked/"
REVOKED_AT = "$access/revoked-at"  # rises with each revocation: one comparison shows new ones
WATCH_SECONDS = 0.25  # between two looks at the file of tokens, and at what other servers revoked
STORAGE_SECONDS = 2.0  # between two looks at how much principals with such a limit store
USAGE_SECONDS = 30.0  # between two looks at which principals and addresses use nothing any more
MAX_CACHED_LOGINS = 4096
MAX_BEFORE_LOGIN = 64 << 10  # bytes of a line, message or form of a peer that has not logged in
JUST_MADE = 10.0  # seconds in which a new topic counts though the backend does not show it yet

log = logging.getLogger("runnel.security")


class Peer(NamedTuple):
    """Where a login comes from."""

    address: str
    listener: str


FILE = Peer("local", "file")
"""Where a change of the file of tokens comes from that this server did not make: `runnel token` without `--server`."""


class UnixPeer(NamedTuple):
    """The credentials of a process at a Unix socket, as the system says."""

    pid: int
    uid: int
    user: str


class AccessControl:
    """The logins of a server. Made before the server opens; `start` when its backend is open."""

    def __init__(self, files: AuthFiles) -> None:
        self.files = files
        self.policy: AuthPolicy = files.read_policy()
        self.owners, self.log = OwnedNames(), SecurityLog()
        self._backend: Backend | None = None
        self._key = secrets.token_bytes(KEY_BYTES)
        self._accesses: WeakSet[Access] = WeakSet()
        self._sockets: WeakSet[Access] = WeakSet()  # of pages with a session
        self._usages: dict[str, Usage] = {}  # by principal
        self._peers: dict[str, Usage] = {}  # by address
        self._made: dict[str, tuple[float, str]] = {}  # topics that were made lately: when, and whose they are
        self._failed = FailedLogins()
        self._cached: dict[tuple[str, str, str], Access] = {}  # logins of requests over HTTP
        self._revoked: set[str] = set()
        self._revoked_at: object = None
        self._topics: set[str] | None = None  # of a backend that cannot say at once whether there is one
        self._asked_topics = False
        self._stamp = files.stamp()
        self._tasks: list[asyncio.Task[None]] = []
        self._writing, self._read_again = asyncio.Lock(), asyncio.Event()

    def __repr__(self) -> str:
        return f"<AccessControl of {str(self.files.file)!r}, {len(self._accesses)} logins>"

    # -- its life -----------------------------------------------------------------------------------------------

    async def start(self, backend: Backend) -> None:
        """The backend is open: load the stored state, and watch for changes."""
        self._backend = backend
        self.policy = self.policy.with_keys(await asyncio.to_thread(self.files.read_keys, self.policy.file.jwt))
        self._tasks = [asyncio.get_running_loop().create_task(one) for one in (self._watch(), self._refresh_keys())]
        self.log.start(backend)
        try:
            await self._load()
        except RunnelError as error:
            if not backend.is_remote:
                raise
            log.warning("sessions and names are known to this server alone until its backend can be asked: %s", error)

    async def _load(self) -> None:
        assert self._backend is not None
        backend = self._backend
        await self.owners.load(backend)
        stored = await backend.mark(KEY_MARKER)
        if stored is None:
            with suppress(MarkConflict):
                await self._mark(KEY_MARKER, self._key, None)
            stored = await backend.mark(KEY_MARKER)
        if isinstance(stored, bytes) and len(stored) == KEY_BYTES:
            self._key = stored
        await self._look_for_revocations()  # before the first peer can connect
        if backend.has_topic("$") is None:
            self._topics = set(await backend.topics())
        for prefix in (TICKET_PREFIX, f"{REVOKED_PREFIX}session:"):
            for name, value in (await backend.marks(prefix)).items():
                if isinstance(value, int) and value < self.now():
                    await self._mark(name, None)

    async def stop(self) -> None:
        """The server stops."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for access in list(self._cached.values()):
            access.release()
        self._cached.clear()
        await self.log.stop()

    def now(self) -> float:
        """Seconds since 1970."""
        assert self._backend is not None, "started first"
        return self._backend.clock.time()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Have it called after so many seconds."""
        assert self._backend is not None, "started first"
        return self._backend.clock.call_later(delay, callback)

    async def _mark(self, name: str, value: int | bytes | None, *expected: None) -> None:
        assert self._backend is not None
        request = TransactionRequest()
        request.mark(Marker(name, value, *expected))
        await self._backend.commit(request)

    # -- changes ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Look for changed tokens, and for what other servers of this backend revoked."""
        loop = asyncio.get_running_loop()
        looked_at_storage, looked_at_usages = 0.0, loop.time()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                if not self._writing.locked() and (stamp := self.files.stamp()) != self._stamp:
                    self._stamp = stamp  # also of a file that is wrong: that is said once
                    self._read_tokens(self.policy)
                await self._look_for_revocations()
                await self.owners.look()
                self._made = {topic: made for topic, made in self._made.items() if self.now() - made[0] < JUST_MADE}
                if self._asked_topics and self._backend is not None:
                    self._asked_topics, self._topics = False, set(await self._backend.topics())
                if loop.time() - looked_at_storage >= STORAGE_SECONDS:
                    looked_at_storage = loop.time()
                    await self._measure_storage()
                if loop.time() - looked_at_usages >= USAGE_SECONDS:
                    looked_at_usages = loop.time()
                    self._forget_usages()
            except RunnelError as error:
                log.warning("the tokens stay as they were: %s", error)
            except Exception:
                log.exception("access could not be looked after")

    async def _look_for_revocations(self) -> None:
        if self._backend is None or (at := await self._backend.mark(REVOKED_AT)) == self._revoked_at:
            return
        self._revoked_at = at
        found = {name.removeprefix(REVOKED_PREFIX) for name in await self._backend.marks(REVOKED_PREFIX)}
        self._end_revoked(found - self._revoked)

    def _end_revoked(self, ids: set[str]) -> None:
        """End the logins by tokens and sessions with these ids."""
        self._revoked |= ids
        for access in list(self._accesses):
            if access.identity.id in ids:
                access.renew(None)
            elif f"session:{access.session}" in ids:
                access.end(NotAuthenticated("the session was signed out"))
        self._forget_cached()

    async def _revoke(self, id: str, value: int) -> None:
        """Have every server of this backend end the logins with this id."""
        self._end_revoked({id})
        assert self._backend is not None
        await store_noticed(self._backend, REVOKED_AT, Marker(f"{REVOKED_PREFIX}{id}", value))

    async def _measure_storage(self) -> None:
        """How much is stored in the topics that principals and addresses with such a limit made."""
        limited = [one for one in self._usages.items() if one[1].limits.storage_bytes is not None]
        addresses = [one for one in self._peers.values() if one.limits.storage_bytes is not None and one.topics]
        if not (limited or addresses) or self._backend is None:
            return
        sizes = {one.name: one.kept_bytes for one in (await self._backend.snapshot()).topics.values()}
        totals: dict[str, int] = {}
        for topic, size in sizes.items():
            if (owner := self.owners.owner("topic", topic)) is not None:
                totals[owner] = totals.get(owner, 0) + size
        owners = {access.principal.name: access.principal.owner for access in self._accesses}
        for name, usage in limited:
            usage.storage_bytes = totals.get(owners.get(name, name), 0)
        for usage in addresses:
            usage.storage_bytes = sum(sizes.get(topic, 0) for topic in usage.topics)

    def _forget_usages(self) -> None:
        """Forget the usage of principals and addresses without a login. Their debt for publishes is kept."""
        now = self.now()
        held = {id(usage) for access in self._accesses if not access.is_gone for usage in access.usages}
        for known in (self._usages, self._peers):
            for name in [name for name, one in known.items() if id(one) not in held and one.is_idle(now)]:
                del known[name]

    async def _refresh_keys(self) -> None:
        """Read the keys of JWTs again, on their schedule. Where that fails, the old ones stay."""
        while True:
            config = self.policy.file.jwt
            self._read_again.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if config is None else config.refresh):
                    await self._read_again.wait()
                continue  # a reload read them: the schedule begins anew
            config = self.policy.file.jwt
            try:
                keys = await asyncio.to_thread(self.files.read_keys, config)
            except RunnelError as error:
                log.warning("the keys of JWTs stay as they were: %s", error)
                continue
            if self.policy.file.jwt == config:  # else a reload read those of another configuration meanwhile
                self._adopt(self.policy.with_keys(keys))  # rules and tokens may have changed since

    async def read(self) -> AuthPolicy:
        """The contents of the files; raises if one is invalid. `adopt` applies them."""
        policy = await asyncio.to_thread(self.files.read_policy)
        return policy.with_keys(await asyncio.to_thread(self.files.read_keys, policy.file.jwt))

    def adopt(self, policy: AuthPolicy) -> None:
        """Go by these rules, tokens and keys, and end what they no longer allow.

        Keys may take long to fetch. A token that was revoked meanwhile stays revoked: the file of tokens is read again.
        """
        self._read_tokens(policy)
        self._read_again.set()

    def _read_tokens(self, policy: AuthPolicy, logged: Iterable[str] = ()) -> None:
        """Go by `policy`, with the tokens that are in the file now. Changes of those in `logged` are logged already."""
        stamp = self.files.stamp()  # before it is read: a change meanwhile is seen by the next look
        before, now = self.policy.tokens, self.files.read_tokens()
        self._adopt(policy.with_tokens(now))
        self._stamp = stamp
        for did, one in changed_tokens(before, now):
            if one.id in logged:
                continue
            self.log.note(self._event("", FILE, "token", f"{did} token {one.id}", one.name))
            if did == "revoke" and now.is_written:
                self._soon(self._revoke(one.id, int(self.now())))

    def _adopt(self, policy: AuthPolicy) -> None:
        self.policy = policy
        for usage in self._peers.values():
            usage.adjust(policy.file.peer_limits)
        for access in list(self._accesses):
            if access.ended is None:
                self._renew(access, self._principal(access.identity))
        self._forget_cached()

    def _renew(self, access: Access, principal: Principal | None) -> None:
        if principal is not None:
            access.usages[0].adjust(principal.limits)
        access.renew(principal)

    def _forget_cached(self) -> None:
        for key, access in list(self._cached.items()):
            if access.ended is not None:
                del self._cached[key]

    # -- logins -------------------------------------------------------------------------------------------------

    def login(
        self,
        credential: str,
        peer: Peer,
        *,
        certificate: Mapping[str, str] | None = None,
        unix: UnixPeer | None = None,
        connection: bool = True,
    ) -> Access:
        """The principal of a peer: by its token, else its certificate, else its Unix user. Raises if there is none."""
        try:
            identity = self._identity(credential, certificate, unix)
            access = self._begin(identity, peer, connection=connection)
        except RunnelError as error:
            self._login_failed(peer, error)
            raise
        self._failed.succeeded(peer.address)
        self.log.note(self._event(access.principal.name, peer, "login", "login", identity.proof))
        return access

    def _identity(self, credential: str, certificate: Mapping[str, str] | None, unix: UnixPeer | None) -> Identity:
        if credential:
            return self.identify(credential)
        if certificate is not None and (name := self.policy.certificate_name(certificate)) is not None:
            return Identity(proof="certificate", name=name, subject=certificate)
        if unix is not None:
            if unix.uid == os.geteuid():
                return Identity(proof="unix", name=unix.user, id="owner")
            if (name := self.policy.unix_name(unix.user)) is not None:
                return Identity(proof="unix", name=name, subject={"user": unix.user})
            raise NotAuthenticated(f"no rule names the Unix user {unix.user!r}, and there is no token")
        raise NotAuthenticated("there is no token")

    def identify(self, credential: str) -> Identity:
        """The principal that a token or a JWT proves."""
        if len(credential) > MAX_TOKEN:
            raise NotAuthenticated("the token is too long")
        if is_opaque(credential):
            found = self.policy.tokens.find(credential)
            if found is None:
                raise NotAuthenticated("this server does not know the token")
            if found.expires is not None and not self.now() < found.expires:
                raise TokenExpired()
            return Identity(proof="token", name=found.name, id=found.id, expires=found.expires)
        return self.policy.identity_of_jwt(credential, self.now())

    def _principal(self, identity: Identity) -> Principal | None:
        if identity.id and identity.id in self._revoked:
            return None
        if identity.proof == "unix" and identity.id == "owner":
            return administrator(identity.name)
        return self.policy.principal(identity)

    def _begin(self, identity: Identity, peer: Peer, *, connection: bool) -> Access:
        principal = self._principal(identity)
        if principal is None:
            raise NotAuthenticated("the login was revoked")
        if identity.expires is not None and not self.now() < identity.expires:
            raise TokenExpired()  # since the ticket was made
        usages = [_usage(self._usages, principal.name, principal.limits, "limits")]
        if peer.address:  # processes at the Unix socket have none
            usages.append(_usage(self._peers, peer.address, self.policy.file.peer_limits, "peer_limits"))
        access = Access(self, identity, principal, tuple(usages), peer.address, peer.listener)
        access.begin(connection=connection)
        self._accesses.add(access)
        return access

    async def renew(self, access: Access, credential: str) -> None:
        """Continue with a new token, which must be of the same principal. Fewer rights end what they do not allow.

        A wrong one is logged and slowed down as any failed login.
        """
        peer = Peer(access.peer, access.listener)
        try:
            identity = self.identify(credential)
            principal = self._principal(identity)
            if principal is None or principal.name != access.principal.name:
                raise NotAuthenticated("the new token is not of the same principal: connect with it instead")
        except RunnelError as error:
            self._login_failed(peer, error)
            await asyncio.sleep(self.login_delay(peer))
            raise
        self.log.note(self._event(principal.name, peer, "login", "renew", identity.proof))
        access.usages[0].adjust(principal.limits)
        access.replace(identity, principal)

    def login_delay(self, peer: Peer) -> float:
        """The seconds that the answer to a failed login has to wait."""
        return self._failed.delay(peer.address, asyncio.get_running_loop().time())

    def _login_failed(self, peer: Peer, error: RunnelError) -> None:
        event = self._event("", peer, "login", "login", error.code)
        self.log.note(msgspec.structs.replace(event, outcome="failed", why=shortened(getattr(error, "why", ""))))

    def login_of_request(self, credential: str, peer: Peer) -> Access:
        """The same for a request over HTTP: logins are kept, for each request brings its token."""
        key = credential, peer.address, peer.listener
        access = self._cached.get(key)
        if access is not None and access.ended is None:
            return access
        access = self.login(credential, peer, connection=False)
        self._cache(key, access)
        return access

    def _cache(self, key: tuple[str, str, str], access: Access) -> None:
        if len(self._cached) >= MAX_CACHED_LOGINS:
            self._cached.pop(next(iter(self._cached)))
        self._cached[key] = access

    # -- browsers -----------------------------------------------------------------------------------------------

    @property
    def sealing_key(self) -> bytes:
        """The key that seals texts."""
        return self._key

    def open_session(self, access: Access, *, ticket: Ticket | None = None, seconds: float = 0.0) -> Session:
        """A session in a browser for a login, until it expires. `ticket`: it is for the event stream of that one."""
        now = self.now()
        most = self.policy.file.session.most
        expires = now + min(seconds or most, most)
        if access.identity.expires is not None:
            expires = min(expires, access.identity.expires)
        return Session(
            id=secrets.token_hex(16),
            identity=access.identity,
            since=now,
            expires=expires,
            events=None if ticket is None else ticket.topics,
            parent=access.session,
            ticket="" if ticket is None else ticket.id,
        )

    def sealed(self, content: Session | Ticket) -> str:
        """The text of a session or ticket."""
        return seal(self._key, content)

    def ticket_of(self, text: str, origin: str) -> Ticket:
        """The contents of a ticket, in force or not, used or not; `origin`: of the page that shows it."""
        ticket = unseal(self._key, text, Ticket, 0.0)
        if ticket.origin != origin:
            raise NotAuthenticated("the ticket was made for a page of another origin")
        return ticket

    def session_of(self, cookie: str, *, ticket: Ticket | None = None) -> Session:
        """The session of a cookie, if it is in force. `ticket`: the one that made it, which allows less than a login.

        Both are sealed alike, and a browser can be made to send one under the name of the other.
        """
        session = unseal(self._key, cookie, Session, self.now())
        if session.ticket != ("" if ticket is None else ticket.id) or (session.events is None) != (ticket is None):
            raise NotAuthenticated("the session is not of this kind")
        if not self._revoked.isdisjoint((f"session:{session.id}", f"session:{session.parent}")):
            raise NotAuthenticated("the session was signed out")
        return session

    def login_of_session(self, session: Session, peer: Peer) -> Access:
        """The login of a session."""
        key = f"session:{session.id}", peer.address, peer.listener
        access = self._cached.get(key)
        identity = msgspec.structs.replace(session.identity, expires=session.expires)
        if access is not None and access.ended is None:
            if access.identity.expires != session.expires:
                access.replace(identity, access.principal)
                self._keep_sockets(session)
            return access
        access = self._begin(identity, peer, connection=False)
        self._keep_sockets(session)
        access.restrict(session.events)
        access.session = session.parent or session.id
        self._cache(key, access)
        return access

    def renewed_session(self, session: Session) -> Session:
        """The same session, for longer if it is used: until it is idle, or has lasted as long as it may."""
        config, now = self.policy.file.session, self.now()
        if session.events is not None or session.expires - now > config.idle * 0.75:
            return session
        latest = session.since + config.most
        if session.identity.expires is not None:
            latest = min(latest, session.identity.expires)
        expires = min(now + config.idle, latest)
        return session if expires <= session.expires else msgspec.structs.replace(session, expires=expires)

    def login_of_socket(self, session: Session, peer: Peer) -> Access:
        """A separate login for a WebSocket, which ends with the session. No message over it renews the session."""
        expires = min(session.expires, session.since + self.policy.file.session.most)
        access = self._begin(msgspec.structs.replace(session.identity, expires=expires), peer, connection=True)
        access.session = session.id
        self._sockets.add(access)
        return access

    def _keep_sockets(self, session: Session) -> None:
        """A request renewed the session: its WebSockets last as long."""
        for access in list(self._sockets):
            expires = access.identity.expires
            if access.session == session.id and access.ended is None and expires and expires < session.expires:
                access.replace(msgspec.structs.replace(access.identity, expires=session.expires), access.principal)

    async def close_session(self, session: Session) -> None:
        """Sign out, on every server of this backend."""
        await self._revoke(f"session:{session.id}", int(session.since + self.policy.file.session.most))

    def issue_ticket(self, access: Access, topics: tuple[str, ...], origin: str) -> Ticket:
        """A ticket for these patterns, which the principal must be allowed to subscribe to."""
        for topic in topics:
            access.check("subscribe", topic)
        return Ticket(
            id=secrets.token_hex(TICKET_BYTES),
            identity=access.identity,
            topics=topics,
            origin=origin,
            expires=self.now() + TICKET_SECONDS,
            session=access.session,
        )

    async def redeem_ticket(self, text: str, origin: str, peer: Peer, *, connection: bool) -> tuple[Access, Ticket]:
        """The login of a ticket, once: on whichever server of this backend it comes first."""
        try:
            ticket = self.ticket_of(text, origin)
            if not self.now() < ticket.expires:
                raise TokenExpired()
            if f"session:{ticket.session}" in self._revoked:
                raise NotAuthenticated("the session was signed out")
            try:
                await self._mark_new(f"{TICKET_PREFIX}{ticket.id}", int(ticket.expires) + 1)
            except MarkConflict:
                raise NotAuthenticated("the ticket was used before") from None
            access = self._begin(ticket.identity, peer, connection=connection)
        except RunnelError as error:
            self._login_failed(peer, error)
            raise
        access.restrict(ticket.topics)
        access.session = ticket.session
        self.log.note(self._event(access.principal.name, peer, "login", "login", "ticket"))
        loop = asyncio.get_running_loop()
        loop.call_later(TICKET_SECONDS + 2, self._forget_ticket, f"{TICKET_PREFIX}{ticket.id}")
        return access, ticket

    async def _mark_new(self, name: str, value: int) -> None:
        """Set a marker that must not be there; a marker that is there already is a conflict even if it is the same."""
        assert self._backend is not None
        request = TransactionRequest()
        request.mark(Marker(name, value, None))
        await self._backend.commit(request)
        if not request.applied:
            raise MarkConflict(name, None, value)

    def _forget_ticket(self, name: str) -> None:
        self._soon(self._mark(name, None))  # or at the next start

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it without waiting for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._is_done)

    def _is_done(self, task: asyncio.Task[None]) -> None:
        if task in self._tasks:
            self._tasks.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("what is kept of access in the backend could not be changed: %s", error)

    # -- tokens -------------------------------------------------------------------------------------------------

    async def create_token(
        self, access: Access, name: str, allow: tuple[str, ...], roles: tuple[str, ...], expires: float | None
    ) -> tuple[str, StoredToken]:
        """A new token, in force at once. The token itself is shown this once."""
        self.policy.check_roles(roles)
        token, stored = make_token(name, random_bytes(), allow=allow, roles=roles, created=self.now(), expires=expires)
        await self.audited(access, f"create token {stored.id}", name)
        async with self._writing:
            await asyncio.to_thread(self.files.edit_tokens, lambda tokens: tokens.with_token(stored))
            self._read_tokens(self.policy, {stored.id})
        return token, stored

    async def revoke_token(self, access: Access, which: str) -> list[StoredToken]:
        """Take back a token, by its id or its name: connections with it end, on every server of this backend."""
        gone = self.policy.tokens.without(which)[1]
        if not gone:
            raise InvalidOption("token", which, "there is no token with this name or id; see `runnel token list`")
        await self.audited(access, "revoke token", which)
        async with self._writing:
            await asyncio.to_thread(self.files.edit_tokens, lambda tokens: tokens.without(which)[0])
            self._read_tokens(self.policy, {one.id for one in gone})
        for token in gone:
            await self._revoke(token.id, int(self.now()))
        return gone

    # -- what an access asks for --------------------------------------------------------------------------------

    def knows_topic(self, topic: str) -> bool:
        """Whether the topic exists, by local knowledge."""
        assert self._backend is not None
        found = self._backend.has_topic(topic)
        if found is not None:
            return found
        if self._topics is not None and topic in self._topics:
            return True
        self._asked_topics = True  # it may be new: looked at again soon
        return False

    def created(self, access: Access, topic: str) -> None:
        """A principal makes a topic: counted where its number or size is limited."""
        now, owner = self.now(), access.principal.owner
        try:
            for at, usage in enumerate(access.usages):
                if usage.limits.topics is not None:
                    made = usage.topics if at else self._topics_of(owner)
                    usage.check_count("topics", sum(one != topic and self._is_there(one) for one in made))
        except LimitExceeded as error:
            access.refuse("create", topic, error)
        for usage in access.usages[1:]:
            usage.note_made("topics", topic)
        own = access.usages[0].limits
        if own.topics is None and own.storage_bytes is None:
            return
        self._made[topic] = now, owner
        self._soon(self.owners.claim("topic", topic, access.principal))

    def _topics_of(self, owner: str) -> set[str]:
        """The topics that a principal made. Of those with long names, all but the newest are known by a hash only."""
        stored = {stored_name("topic", topic) for topic, (_, of) in self._made.items() if of == owner}
        return stored.union(self.owners.names("topic", owner))

    def _is_there(self, topic: str) -> bool:
        """Whether a topic counts: it is there, is just being made, or only the hash of its name is known."""
        return topic.startswith("#") or topic in self._made or self.knows_topic(topic)

    async def deleted(self, topic: str) -> None:
        """A topic was deleted: it no longer counts, and creating it again needs the right."""
        self._made.pop(topic, None)
        for access in self._accesses:
            access.publishable.discard(topic)
        for usage in self._peers.values():
            usage.topics.pop(topic, None)
        await self.owners.release("topic", topic)

    def refused(self, access: Access, action: str, target: str, error: RunnelError) -> None:
        """Note a refusal in the security log."""
        peer = Peer(access.peer, access.listener)
        event = self._event(access.principal.name, peer, "refusal", action, target)
        self.log.note(msgspec.structs.replace(event, outcome="refused", why=error.code))

    async def audited(self, access: Access, action: str, target: str) -> None:
        """Write an admin action to the security log; `AuditFailed` if that cannot be."""
        kind = "token" if "token" in action else "admin"
        peer = Peer(access.peer, access.listener)
        await self.log.audit(self._event(access.principal.name, peer, kind, action, target))

    def _event(self, principal: str, peer: Peer, kind: str, action: str, target: str) -> SecurityEvent:
        return SecurityEvent(
            time=self.now(),
            kind=kind,
            principal=shortened(principal),
            peer=peer.address or "unix",
            listener=peer.listener,
            action=shortened(action),
            target=shortened(target),
        )


def _usage(known: dict[str, Usage], name: str, limits: Limits, of: str) -> Usage:
    """The usage of a principal, or an address; with its present limits."""
    usage = known.get(name)
    if usage is None:
        usage = known[name] = Usage(limits, of)
    elif usage.limits != limits:
        usage.adjust(limits)
    return usage
