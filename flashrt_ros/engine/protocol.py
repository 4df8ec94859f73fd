"""The wire: one SEQPACKET datagram is one tagged msgpack array; imports without torch.

A client sends :data:`Request` messages, each with a ``rid`` of its own choice, and
gets exactly one reply with that ``rid``: the message named in the request's
docstring, or :class:`Failure`. :class:`Output` and :class:`Event` come unasked to
connections that subscribed. File descriptors ride only on :class:`WriterOpened`
and :class:`Subscribed`. Stamps named ``stamp_ns`` are on the clock of the node
that writes them; the engine compares them and never reads that clock.
"""

from __future__ import annotations

import enum

import msgspec

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 65536
MAX_INLINE_BYTES = 4096
"""Outputs up to this size ride in their announcement; larger ones in output slots."""


# records -------------------------------------------------------------------------------------


class FieldInfo(msgspec.Struct, array_like=True, frozen=True):
    """A payload field, as in ``runtime.spec.FieldSpec``; offset in bytes in the slot."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    low: float | None
    high: float | None
    units: str


class ChannelInfo(msgspec.Struct, array_like=True, frozen=True):
    """A slot channel of the model."""

    name: str
    role: str
    frame: str
    slot_bytes: int
    num_ring_slots: int
    ring_bytes: int
    fields: tuple[FieldInfo, ...]


class ModelInfo(msgspec.Struct, array_like=True, frozen=True):
    """What a node needs to know of the engine's model."""

    name: str
    horizon: int
    action_dim: int
    execute_horizon: int
    joint_names: tuple[str, ...]
    step_ns: int
    channels: tuple[ChannelInfo, ...]
    fingerprint: str
    num_environments: int
    num_branches: int
    capsule_bytes: int


class CapsuleInfo(msgspec.Struct, array_like=True, frozen=True):
    """A capsule, without its bytes.

    ``created_ns`` is wall time. ``digest`` is computed when a capsule is written to a file,
    "" before. ``tier`` is the fastest one that holds it. A persisted capsule is found by a
    restarted engine. An automatic one is the engine's own and goes by itself.
    """

    id: str
    name: str
    parent: str
    labels: tuple[str, ...]
    created_ns: int
    tick: int
    position: int
    num_bytes: int
    tier: str
    pinned: bool
    fingerprint: str
    digest: str
    persist: bool = False
    is_automatic: bool = False


class TierInfo(msgspec.Struct, array_like=True, frozen=True):
    """What callers' capsules take in a tier."""

    name: str
    num_capsules: int
    used_bytes: int
    quota_bytes: int


class TimelineInfo(msgspec.Struct, array_like=True, frozen=True):
    """Where an environment (branch -1) or a branch stands.

    ``parent`` is the nearest kept capsule that its state came from, "" for none.
    """

    env_index: int
    branch: int
    lane: int
    parent: str
    tick: int
    generation: int


class Provenance(msgspec.Struct, array_like=True, frozen=True):
    """What an action or chunk was made from.

    ``sequence`` counts outputs of the engine and only grows. ``goal_sequence`` and
    ``observation_sequence`` are the engine's numbers of the commits consumed (0 for
    none), ``goal_source_sequence`` the number the writer gave, the stamps the writers'
    own. ``latched_tick`` is the tick at which the plan latched. ``capsule_id`` names the
    capsule that a verb last put under the timeline, "" for none. From ``goal_expires_ns`` on,
    writer's clock, the goal must not be acted on; 0 where its writer named no lifetime.
    """

    engine_epoch: int
    env_index: int
    branch: int
    generation: int
    sequence: int
    tick: int
    latched_tick: int
    goal_sequence: int
    goal_source_sequence: int
    goal_stamp_ns: int
    observation_sequence: int
    observation_stamp_ns: int
    capsule_id: str = ""
    goal_expires_ns: int = 0


class ChunkRecord(msgspec.Struct, array_like=True, frozen=True):
    """A chunk in the reply to a step: ``actions`` is ``float32[H, A]``, row-major, as bytes.

    ``score`` is the model's own for a branch, NaN for the environment.
    """

    provenance: Provenance
    actions: bytes
    score: float


class ActionRecord(msgspec.Struct, array_like=True, frozen=True):
    """One popped action: ``values`` is ``float32[A]``; ``index`` is its place in the chunk."""

    provenance: Provenance
    index: int
    values: bytes


# client to engine ----------------------------------------------------------------------------


class Hello(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """First message of a connection → :class:`Welcome`."""

    rid: int
    version: int
    client: str
    pid: int


class Ping(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """→ :class:`Ack`."""

    rid: int


class OpenWriter(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """Ask for a ring of a channel → :class:`WriterOpened`, with one descriptor."""

    rid: int
    channel: str
    env_index: int


class Loan(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """Take a slot of one's ring → :class:`Loaned`."""

    rid: int
    writer: int


class Commit(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """Hand a loaned slot over, newest wins → :class:`Committed`.

    ``source_sequence`` is the writer's own number. ``loan_next`` takes the next slot in
    the same message. A refusal (stale generation or stamp) gives the slot back to the
    ring; it is not loaned any more. ``lifetime_ns`` says how long the payload may be acted
    on, from its stamp; 0 for until something newer comes.
    """

    rid: int
    writer: int
    slot: int
    ticket: int
    stamp_ns: int
    source_sequence: int
    loan_next: bool
    lifetime_ns: int = 0


class Return(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """Give a loaned slot back unused → :class:`Ack`."""

    rid: int
    writer: int
    slot: int
    ticket: int


class Subscribe(msgspec.Struct, array_like=True, tag=7, frozen=True):
    """Ask for actions, chunks and events of an environment → :class:`Subscribed`."""

    rid: int
    env_index: int
    actions: bool
    chunks: bool
    events: bool


class Release(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """Return the credit of one :class:`Output` kind; has no reply.

    ``slot`` is the output slot it came in, -1 when it came inline.
    """

    env_index: int
    kind: int
    slot: int


class Activate(msgspec.Struct, array_like=True, tag=9, frozen=True):
    """Start ticking an environment; takes ``home`` when there is none → :class:`Moved`.

    ``rate_hz`` applies to source "timer".
    """

    rid: int
    env_index: int
    tick_source: str
    rate_hz: float


class Deactivate(msgspec.Struct, array_like=True, tag=10, frozen=True):
    """Stop ticking at the last boundary and empty the queue → :class:`Moved`."""

    rid: int
    env_index: int


class Snapshot(msgspec.Struct, array_like=True, tag=11, frozen=True):
    """Freeze the last boundary → :class:`CapsuleReply`. An empty name stays nameless.

    ``persist`` has it written to a file that a restarted engine finds; the answer does not
    wait for it.
    """

    rid: int
    env_index: int
    name: str
    labels: tuple[str, ...]
    pinned: bool
    replace: bool
    align_down: bool
    persist: bool = False


class Restore(msgspec.Struct, array_like=True, tag=12, frozen=True):
    """Bring a capsule back into an environment → :class:`Moved`.

    ``reset`` makes it an episode reset: goals are dropped unless ``keep_goal``, and
    nothing committed with a stamp before ``stamp_ns`` acts any more (0: any stamp does).
    ``episode_id`` makes a repeated reset answer as the first did; "" never does.
    """

    rid: int
    env_index: int
    capsule: str
    keep_goal: bool
    seed: int | None
    reset: bool
    episode_id: str
    stamp_ns: int


class Fork(msgspec.Struct, array_like=True, tag=13, frozen=True):
    """Fill ``count`` lanes from a capsule ("" = the last boundary) → :class:`Forked`.

    ``seeds`` is empty (seeds derived from the capsule's) or has ``count`` entries.
    """

    rid: int
    env_index: int
    capsule: str
    count: int
    seeds: tuple[int, ...]


class Select(msgspec.Struct, array_like=True, tag=14, frozen=True):
    """Make a branch's state the environment's → :class:`Moved`.

    Branch -1 is the environment itself: nothing moves, the others may be released.
    """

    rid: int
    env_index: int
    branch: int
    release_others: bool


class Rollback(msgspec.Struct, array_like=True, tag=15, frozen=True):
    """Go back ``boundaries`` in the ring, or to an ancestor by id → :class:`Moved`."""

    rid: int
    env_index: int
    boundaries: int
    capsule: str


class Step(msgspec.Struct, array_like=True, tag=16, frozen=True):
    """Run ``count`` ticks of the environment (branch -1) or a branch → :class:`Stepped`.

    Waits until a required observation not older than ``min_observation_stamp_ns`` is
    committed, ``timeout_ns`` at most.
    """

    rid: int
    env_index: int
    count: int
    branch: int
    min_observation_stamp_ns: int
    timeout_ns: int


class Interrupt(msgspec.Struct, array_like=True, tag=17, frozen=True):
    """Abandon the plan in flight and stack its boundary → :class:`Interrupted`.

    ``commit`` hands a goal over in the same instant; until a resume, goals stamped
    before it are refused. ``hold`` stops ticking until a resume, or until a goal comes.
    """

    rid: int
    env_index: int
    reason: str
    hold: bool
    commit: Commit | None


class Resume(msgspec.Struct, array_like=True, tag=18, frozen=True):
    """Restore the boundary on top of the interrupt stack → :class:`Moved`."""

    rid: int
    env_index: int
    keep_goal: bool


class ListCapsules(msgspec.Struct, array_like=True, tag=19, frozen=True):
    """→ :class:`CapsulePage`. Every filter but "" (0, -1) must match.

    ``label`` is one ``key=value``, ``name_prefix`` the start of a name. ``since_ns`` and
    ``until_ns`` bound the wall time of creation, both inclusive. ``pinned`` is 1 for pinned
    ones, 0 for the others.
    """

    rid: int
    offset: int
    limit: int
    label: str
    name_prefix: str = ""
    since_ns: int = 0
    until_ns: int = 0
    tier: str = ""
    pinned: int = -1


class Drop(msgspec.Struct, array_like=True, tag=20, frozen=True):
    """Forget a capsule; its children stay → :class:`Ack`.

    ``home`` means that of ``env_index``.
    """

    rid: int
    capsule: str
    env_index: int = 0


class Pin(msgspec.Struct, array_like=True, tag=21, frozen=True):
    """Pin or unpin a capsule → :class:`CapsuleReply`.

    ``home`` means that of ``env_index``.
    """

    rid: int
    capsule: str
    pinned: bool
    env_index: int = 0


class GetStatus(msgspec.Struct, array_like=True, tag=22, frozen=True):
    """→ :class:`Status`."""

    rid: int
    env_index: int


class Reseed(msgspec.Struct, array_like=True, tag=23, frozen=True):
    """Set an environment's noise seed and counter, state kept (test hook) → :class:`Moved`."""

    rid: int
    env_index: int
    seed: int
    counter: int


class Inspect(msgspec.Struct, array_like=True, tag=24, frozen=True):
    """→ :class:`Inspection` (test hook)."""

    rid: int
    env_index: int


class Stop(msgspec.Struct, array_like=True, tag=25, frozen=True):
    """End the engine at the next boundary → :class:`Ack`."""

    rid: int


class Save(msgspec.Struct, array_like=True, tag=26, frozen=True):
    """Write a capsule into the engine's capsule folder → :class:`Saved`, once it is on disk.

    ``file`` is a name in the folder, without the suffix; "" takes the capsule's name or id.
    """

    rid: int
    env_index: int
    capsule: str
    file: str
    replace: bool


class Load(msgspec.Struct, array_like=True, tag=27, frozen=True):
    """Read a file of the capsule folder, every byte checked → :class:`CapsuleReply`.

    ``name`` "" takes the name that it was saved under.
    """

    rid: int
    env_index: int
    file: str
    name: str
    pinned: bool
    replace: bool


class Collect(msgspec.Struct, array_like=True, tag=28, frozen=True):
    """Drop what every rule given admits → :class:`CapsulePage` of what went, or would go.

    Rules: created ``older_than_ns`` ago or earlier, one ``label``, a ``name_prefix``;
    ``unpinned`` admits all, so that at least one rule is given. The ``keep_last`` newest of
    those admitted stay. Pins, homes, and what the engine holds itself never go.

    With ``dry_run`` nothing goes, and ``offset`` pages. Without it one request drops a page
    of them; ``total`` counts those before it, so that the caller asks until none is left.
    """

    rid: int
    older_than_ns: int
    label: str
    name_prefix: str
    unpinned: bool
    keep_last: int
    dry_run: bool
    offset: int = 0


class GetFingerprint(msgspec.Struct, array_like=True, tag=29, frozen=True):
    """Ask what a capsule was taken under, "" for the engine itself → :class:`FingerprintInfo`."""

    rid: int
    env_index: int
    capsule: str


class Instruct(msgspec.Struct, array_like=True, tag=30, frozen=True):
    """Begin a turn of a planner's text → :class:`TurnDone` at its end, if ``wait``.

    Without ``wait`` the answer is :class:`TurnBegun`, at once. ``prompt`` is UTF-8 and may be
    left out for ``tokens``, which then are all that the turn appends; ``context`` is a line
    before it. ``mode`` is "new" (from ``capsule``; "" for the prefix library's end) or "append"
    (after the turn before). ``max_tokens`` 0, ``temperature`` and ``seed`` -1 take the engine's
    own. With ``seeds`` a plan is made with each, and the one of the best score by ``scorer`` is
    committed; before, none is told.

    A turn that is under way is abandoned; it can be resumed.
    """

    rid: int
    env_index: int
    prompt: bytes
    tokens: tuple[int, ...] = ()
    context: bytes = b""
    mode: str = "new"
    capsule: str = ""
    max_tokens: int = 0
    temperature: float = -1.0
    seed: int = -1
    seeds: tuple[int, ...] = ()
    scorer: str = ""
    wait: bool = True


class CancelTurn(msgspec.Struct, array_like=True, tag=31, frozen=True):
    """End the turn under way, for good → :class:`Moved`, back where it began."""

    rid: int
    env_index: int


class ResumeTurn(msgspec.Struct, array_like=True, tag=32, frozen=True):
    """Go on with the last turn that was interrupted → :class:`TurnDone`, as for ``Instruct``."""

    rid: int
    env_index: int
    wait: bool = True


class SetPrefix(msgspec.Struct, array_like=True, tag=33, frozen=True):
    """Replace the text of a prefix; it and those after it are built again → :class:`Ack`.

    The answer comes once they are. Turns that begin at the library's end wait for it.
    """

    rid: int
    name: str
    text: bytes


# engine to client ----------------------------------------------------------------------------


class Welcome(msgspec.Struct, array_like=True, tag=64, frozen=True):
    """The engine's side of the handshake. ``engine_epoch`` is new for every process."""

    rid: int
    version: int
    engine: str
    engine_epoch: int
    model: ModelInfo


class Ack(msgspec.Struct, array_like=True, tag=65, frozen=True):
    """Done, with nothing to say."""

    rid: int


class Failure(msgspec.Struct, array_like=True, tag=66, frozen=True):
    """The request was refused; state is as before. ``code`` as in ``errors.py``."""

    rid: int
    code: int
    message: str


class WriterOpened(msgspec.Struct, array_like=True, tag=67, frozen=True):
    """A ring of ``ring_bytes`` is the client's to map; ``writer`` names it from here on.

    ``first_slot`` is the ring's first index in the channel, ``inode`` and ``device``
    identify the memory for the copy count.
    """

    rid: int
    writer: int
    channel: ChannelInfo
    env_index: int
    first_slot: int
    inode: int
    device: int


class Loaned(msgspec.Struct, array_like=True, tag=68, frozen=True):
    """``slot`` counts from the ring's start; ``ticket`` must come back with the commit."""

    rid: int
    slot: int
    ticket: int
    generation: int


class Committed(msgspec.Struct, array_like=True, tag=69, frozen=True):
    """``sequence`` is the engine's number of the commit, per channel and environment.

    ``next_slot`` is -1 when none was asked for or none was free.
    """

    rid: int
    sequence: int
    generation: int
    next_slot: int
    next_ticket: int


class Subscribed(msgspec.Struct, array_like=True, tag=70, frozen=True):
    """Outputs follow. With ``slot_bytes`` > 0 a descriptor of the output ring came along."""

    rid: int
    slot_bytes: int
    num_slots: int


class Moved(msgspec.Struct, array_like=True, tag=71, frozen=True):
    """Where the environment stands now.

    ``path`` is "flip", "copy" or "". ``barrier_ns`` is the stamp that observations must
    have reached to act, writers' clock; 0 where any does.
    """

    rid: int
    tick: int
    generation: int
    path: str
    duration_ns: int
    capsule_id: str
    depth: int
    barrier_ns: int = 0


class CapsuleReply(msgspec.Struct, array_like=True, tag=72, frozen=True):
    """A capsule made or changed. ``tail_length`` is what align_down left out."""

    rid: int
    capsule: CapsuleInfo
    tail_length: int


class Forked(msgspec.Struct, array_like=True, tag=73, frozen=True):
    """Branch indices, in the order of the seeds."""

    rid: int
    capsule_id: str
    branches: tuple[int, ...]
    seeds: tuple[int, ...]


class Stepped(msgspec.Struct, array_like=True, tag=74, frozen=True):
    """The ticks run, oldest first; ``chunks`` holds those made on the way."""

    rid: int
    tick: int
    generation: int
    chunks: tuple[ChunkRecord, ...]
    actions: tuple[ActionRecord, ...]


class Interrupted(msgspec.Struct, array_like=True, tag=75, frozen=True):
    """``boundary`` is the plan node before which it took effect, -1 between plans."""

    rid: int
    capsule_id: str
    depth: int
    boundary: int
    generation: int
    goal_sequence: int
    tick: int


class CapsulePage(msgspec.Struct, array_like=True, tag=76, frozen=True):
    """Capsules from ``offset``; ``total`` counts all that match.

    ``timelines`` says where every environment and branch stands.
    """

    rid: int
    capsules: tuple[CapsuleInfo, ...]
    total: int
    timelines: tuple[TimelineInfo, ...] = ()


class Status(msgspec.Struct, array_like=True, tag=77, frozen=True):
    """Figures of the engine and one environment since activation.

    ``replay_*_us`` time one chunk plan. Ages are in ns since the last commit, on the
    engine's clock, -1 when there was none. ``capsule_folder`` is an absolute path, "" for none.
    """

    rid: int
    state: str
    waiting_for: str
    tick: int
    generation: int
    rate_hz: float
    tick_source: str
    replay_p50_us: float
    replay_p99_us: float
    replay_max_us: float
    lateness_p50_us: float
    lateness_p99_us: float
    deadline_misses: int
    goal_age_ns: int
    observation_age_ns: int
    dropped_goals: int
    dropped_observations: int
    missed_outputs: int
    lanes_used: int
    lanes_total: int
    num_capsules: int
    capsule_bytes: int
    interrupt_depth: int
    branches: tuple[int, ...]
    num_clients: int
    tiers: tuple[TierInfo, ...] = ()
    capsule_folder: str = ""


class Inspection(msgspec.Struct, array_like=True, tag=78, frozen=True):
    """What the engine can be asked for in a test.

    ``read_inode``, ``read_device`` and ``read_offset`` locate the memory from which the
    latch node read the last goal (found in the captured graph, not in bookkeeping);
    zero inode means private memory, that is a copy. ``torn_reads`` counts latched slots
    whose bytes changed before they were given back. ``num_fds`` and ``num_mappings`` are
    the process's own.
    """

    rid: int
    state_digest: str
    input_digest: str
    noise_seed: int
    noise_counter: int
    read_inode: int
    read_device: int
    read_offset: int
    goal_transport_copies: int
    torn_reads: int
    num_latches: int
    num_fds: int
    num_mappings: int


class OutputKind(enum.IntEnum):
    """What an :class:`Output` carries."""

    ACTION = 0
    CHUNK = 1


class Output(msgspec.Struct, array_like=True, tag=79, frozen=True):
    """An action or chunk. The subscriber owes one :class:`Release` before the next.

    ``slot`` is -1 and ``payload`` holds the bytes when it came inline. ``index`` is an
    action's place in its chunk. ``missed`` counts those replaced by newer ones while the
    credit was out. ``produced_ns`` is CLOCK_MONOTONIC.
    """

    kind: int
    provenance: Provenance
    index: int
    slot: int
    payload: bytes
    missed: int
    produced_ns: int


class EventKind(enum.IntEnum):
    """Kinds of :class:`Event`; the numbers are those of ``ExecutionEvent.msg``."""

    SNAPSHOT = 1
    RESTORE = 2
    FORK = 3
    SELECT = 4
    ROLLBACK = 5
    RESET = 6
    INTERRUPT = 7
    RESUME = 8
    GOAL = 9
    STALE = 10
    SAFETY = 11
    FAULT = 12
    TURN = 13
    SUBGOAL = 14


class Event(msgspec.Struct, array_like=True, tag=80, frozen=True):
    """Something happened to an environment. Reliable up to 256 unsent ones per client."""

    kind: int
    engine_epoch: int
    env_index: int
    generation: int
    tick: int
    capsule_id: str
    duration_ns: int
    detail: str


class Saved(msgspec.Struct, array_like=True, tag=81, frozen=True):
    """A file that is on disk. ``num_bytes`` is its size, ``digest`` the payload's."""

    rid: int
    file: str
    num_bytes: int
    digest: str
    duration_ns: int


class FingerprintInfo(msgspec.Struct, array_like=True, tag=82, frozen=True):
    """Named facts, sorted by name, and their digest."""

    rid: int
    fields: tuple[tuple[str, str], ...]
    digest: str


class CandidateInfo(msgspec.Struct, array_like=True, frozen=True):
    """A plan that was compared: ``log_probability`` at temperature 1, ``score`` by the scorer."""

    seed: int
    text: str
    log_probability: float
    score: float
    num_tokens: int


class TurnBegun(msgspec.Struct, array_like=True, tag=83, frozen=True):
    """A turn begins with the next plan node; ``turn`` numbers it in the engine."""

    rid: int
    turn: int
    generation: int
    num_prompt_tokens: int


class TurnDone(msgspec.Struct, array_like=True, tag=84, frozen=True):
    """A turn that is committed.

    ``subgoals`` are in the order of the plan, m. ``capsule_id`` is the boundary after it,
    ``num_positions`` the tokens of the whole text. ``first_token_ns``, ``first_subgoal_ns``
    and ``duration_ns`` count from the message, ``num_prompt_tokens`` what the turn appended
    before its plan. ``candidates`` is in the order of the seeds asked for.
    """

    rid: int
    turn: int
    env_index: int
    generation: int
    text: str
    tokens: tuple[int, ...]
    subgoals: tuple[tuple[float, ...], ...]
    num_prompt_tokens: int
    num_positions: int
    seed: int
    log_probability: float
    capsule_id: str
    first_token_ns: int
    first_subgoal_ns: int
    duration_ns: int
    candidates: tuple[CandidateInfo, ...] = ()


Request = (
    Hello
    | Ping
    | OpenWriter
    | Loan
    | Commit
    | Return
    | Subscribe
    | Release
    | Activate
    | Deactivate
    | Snapshot
    | Restore
    | Fork
    | Select
    | Rollback
    | Step
    | Interrupt
    | Resume
    | ListCapsules
    | Drop
    | Pin
    | GetStatus
    | Reseed
    | Inspect
    | Stop
    | Save
    | Load
    | Collect
    | GetFingerprint
    | Instruct
    | CancelTurn
    | ResumeTurn
    | SetPrefix
)

Reply = (
    Welcome
    | Ack
    | Failure
    | WriterOpened
    | Loaned
    | Committed
    | Subscribed
    | Moved
    | CapsuleReply
    | Forked
    | Stepped
    | Interrupted
    | CapsulePage
    | Status
    | Inspection
    | Saved
    | FingerprintInfo
    | TurnBegun
    | TurnDone
)

Message = Request | Reply | Output | Event

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_request = msgspec.msgpack.Decoder(Request).decode
"""Raises ``msgspec.ValidationError`` or ``msgspec.DecodeError`` on anything else."""
decode_from_engine = msgspec.msgpack.Decoder(Reply | Output | Event).decode
