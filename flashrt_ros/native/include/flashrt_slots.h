/* Share a running engine's buffers from C or C++: no Python, no DDS, nothing beyond libc.
 *
 * A writer borrows a slot of shared memory, writes a goal or an observation into it and hands
 * it over; the engine's captured graph reads that very memory. A reader gets the actions made
 * from it. What is promised, and what is not, stands in docs/native.md and docs/engine.md.
 *
 * Threads: a connection and its writers serve one thread; use a connection per thread. A forked
 * child must leave them alone; its calls are refused, and the rings are not mapped in it.
 * Memory: flashrt_connect, flashrt_open_writer and flashrt_subscribe allocate, nothing else does.
 * Time: every wait ends, at the latest after the time given to it.
 * Errors: calls that return int return FLASHRT_OK, FLASHRT_NOTHING, or the code of an error, the
 * same number that services and the Python client know. Their last argument, which may be NULL,
 * takes the code and a message that says what failed, what was expected and what was found.
 */
#ifndef FLASHRT_SLOTS_H
#define FLASHRT_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define FLASHRT_API __attribute__((visibility("default")))
#else
#define FLASHRT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#ifndef FLASHRT_WIRE_VERSION
#define FLASHRT_WIRE_VERSION 1
#endif

#define FLASHRT_MESSAGE_BYTES 1024
#define FLASHRT_CAPSULE_ID_BYTES 64
#define FLASHRT_MAX_DIMS 8

/* errors ------------------------------------------------------------------------------------ */

/* Codes that calls of this library return; docs/errors.md has the whole table. */
typedef enum flashrt_code {
  FLASHRT_NOTHING = -1, /* no error: the time was up and nothing had come */
  FLASHRT_OK = 0,
  FLASHRT_INTERNAL = 1,
  FLASHRT_SPEC = 100,
  FLASHRT_PROTOCOL_VERSION = 300,
  FLASHRT_PROTOCOL = 301,
  FLASHRT_ENGINE_GONE = 302,
  FLASHRT_PEER_REFUSED = 304,
  FLASHRT_NO_FREE_SLOT = 305,
  FLASHRT_LOAN = 306,
  FLASHRT_STALE_GENERATION = 307,
  FLASHRT_STALE_STAMP = 308,
  FLASHRT_UNKNOWN_CHANNEL = 309,
  FLASHRT_NO_WRITER_RING = 310,
  FLASHRT_NOT_ACTIVE = 311,
  FLASHRT_UNKNOWN_ENVIRONMENT = 316,
  FLASHRT_UNSUPPORTED = 317,
  FLASHRT_BUSY = 318,
  FLASHRT_SHARED_MEMORY = 320,
  FLASHRT_PAYLOAD_SHAPE = 400,
  FLASHRT_PAYLOAD_TYPE = 401,
  FLASHRT_NON_FINITE = 402,
  FLASHRT_PAYLOAD_RANGE = 406,
  FLASHRT_CONFIG = 500
} flashrt_code;

/* What went wrong. A code that this library does not name may come from a newer engine. */
typedef struct flashrt_error {
  int code;
  char message[FLASHRT_MESSAGE_BYTES]; /* UTF-8, always ended; cut where it is longer */
} flashrt_error;

/* Return a code's name, as in "STALE_STAMP"; "UNKNOWN" for one that is not in the list. */
FLASHRT_API const char *flashrt_code_name(int code);

/* connection -------------------------------------------------------------------------------- */

typedef struct flashrt_client flashrt_client;

/* What the engine says of its model. Strings and lists live as long as the connection. */
typedef struct flashrt_model {
  const char *name;
  const char *fingerprint;
  uint32_t horizon;         /* actions in a chunk */
  uint32_t action_dim;      /* numbers in an action */
  uint32_t execute_horizon; /* actions of a chunk that are executed */
  uint32_t num_joints;
  const char *const *joint_names;
  int64_t step_ns; /* time from one action to the next */
  uint32_t num_environments;
} flashrt_model;

/* Connect to an engine and shake hands.
 *
 * The socket's folder and the user behind the socket are checked as the Python client does.
 *
 * engine      the engine's name; a namespace and slashes are fine
 * client      what the engine calls this connection in its log
 * timeout_ms  how long to wait for an answer, here and in later calls
 * wait_ms     how long to wait for the engine to come up; 0 tries once
 * out         the connection, for flashrt_close; NULL on an error
 *
 * ENGINE_GONE: no engine of this name answers in time. PEER_REFUSED: folder or process are not
 * to be trusted, or this user may not connect. PROTOCOL_VERSION: the engine speaks another
 * version. BUSY: it takes no more clients. CONFIG: the name is empty or too long. INTERNAL: no
 * memory or descriptor is left.
 */
FLASHRT_API int flashrt_connect(const char *engine, const char *client, int timeout_ms,
                                int wait_ms, flashrt_client **out, flashrt_error *error);

/* End the connection, its writers included; the engine takes back what it lent. NULL is fine. */
FLASHRT_API void flashrt_close(flashrt_client *client);

#define FLASHRT_BUSY_POLL_US 50

/* Say how long a call looks for its answer without a pause before it sleeps until it comes.
 *
 * A thread that sleeps wakes up slowly; looking costs so much of a core at each call, at most.
 *
 * busy_poll_us  FLASHRT_BUSY_POLL_US, as it is at first; 0 to 10 000 000
 *
 * CONFIG: it is outside of that; nothing changes.
 */
FLASHRT_API int flashrt_set_busy_poll(flashrt_client *client, int64_t busy_poll_us,
                                      flashrt_error *error);

/* Return what the engine said of its model. */
FLASHRT_API const flashrt_model *flashrt_get_model(const flashrt_client *client);

/* Return a number that is new for every engine process. */
FLASHRT_API uint64_t flashrt_engine_epoch(const flashrt_client *client);

/* Return the socket, to wait for it with others. Something may be kept already: read until
 * FLASHRT_NOTHING before waiting. -1 once the connection has ended. */
FLASHRT_API int flashrt_fileno(const flashrt_client *client);

/* Ask for an empty answer. ENGINE_GONE: the connection has ended, or none came in time. */
FLASHRT_API int flashrt_ping(flashrt_client *client, flashrt_error *error);

/* Write the path of an engine's socket, for people; cut where it is longer than `size`.
 * CONFIG: the name is empty or too long. */
FLASHRT_API int flashrt_socket_path(const char *engine, char *path, size_t size,
                                    flashrt_error *error);

/* writing ----------------------------------------------------------------------------------- */

typedef struct flashrt_writer flashrt_writer;

typedef enum flashrt_dtype {
  FLASHRT_FLOAT64,
  FLASHRT_FLOAT32,
  FLASHRT_FLOAT16,
  FLASHRT_BFLOAT16,
  FLASHRT_INT64,
  FLASHRT_INT32,
  FLASHRT_INT16,
  FLASHRT_INT8,
  FLASHRT_UINT8,
  FLASHRT_BOOL
} flashrt_dtype;

/* A typed part of a slot. */
typedef struct flashrt_field_info {
  const char *name;
  const char *units; /* SI, for people; "" for none */
  flashrt_dtype dtype;
  uint32_t num_dims;
  uint64_t shape[FLASHRT_MAX_DIMS];
  uint64_t num_items;
  uint64_t offset; /* bytes from the slot's start */
  uint64_t num_bytes;
  double low; /* -INFINITY for none */
  double high; /* INFINITY for none */
} flashrt_field_info;

/* A channel and this writer's ring in it. Lives as long as the connection. */
typedef struct flashrt_channel {
  const char *name;
  const char *role;  /* "goal" or "observation" */
  const char *frame; /* REP 105; "" where none applies */
  uint64_t slot_bytes;
  uint32_t num_ring_slots;
  uint32_t num_fields;
  const flashrt_field_info *fields;
  uint64_t inode; /* of the ring's memory, with `device` */
  uint64_t device;
} flashrt_channel;

/* Ask for a ring of a channel and map it.
 *
 * The ring is given back when the connection is closed. UNKNOWN_CHANNEL, UNKNOWN_ENVIRONMENT:
 * the model has none such. NO_WRITER_RING: every ring is taken. SHARED_MEMORY: the memory can't
 * be trusted or mapped, or no descriptor is left for it. UNSUPPORTED: a field's dtype or rank is not known here.
 */
FLASHRT_API int flashrt_open_writer(flashrt_client *client, const char *channel,
                                    uint32_t env_index, flashrt_writer **out,
                                    flashrt_error *error);

/* Give the loan back and unmap the ring; pointers into it are bad from here on. NULL is fine.
 * The writer may not be used again; its memory goes with the connection. */
FLASHRT_API void flashrt_close_writer(flashrt_writer *writer);

/* Return what the slots of this writer's channel hold. */
FLASHRT_API const flashrt_channel *flashrt_get_channel(const flashrt_writer *writer);

/* Borrow a slot; does nothing while one is on loan, so it may be called before every write.
 *
 * NO_FREE_SLOT: every slot of the ring waits to be read, or is: wait, or drop.
 * ENGINE_GONE: the connection has ended.
 */
FLASHRT_API int flashrt_loan(flashrt_writer *writer, flashrt_error *error);

/* Return where a field of the slot on loan lies, borrowing a slot first if there is none.
 *
 * It holds what the slot held before: write every item of every field. The pointer is good until
 * the slot is committed or returned; the bytes must not change after that.
 *
 * num_items  how many the caller is going to write, checked against the field's shape
 *
 * Returns NULL on an error. PAYLOAD_SHAPE: no such field, or another number of items.
 * PAYLOAD_TYPE: another dtype. Else as flashrt_loan.
 */
FLASHRT_API void *flashrt_field(flashrt_writer *writer, const char *name, flashrt_dtype dtype,
                                uint64_t num_items, flashrt_error *error);

/* Check the slot on loan against its channel, as flashrt_commit does; nothing is handed over.
 * NON_FINITE: NaN or Inf. PAYLOAD_RANGE: outside a field's range. LOAN: no slot is on loan. */
FLASHRT_API int flashrt_check(const flashrt_writer *writer, flashrt_error *error);

/* Say how long what this writer commits from here on may be acted on, from its stamp.
 *
 * lifetime_ns  0, as it is at first, for as long as nothing newer comes
 *
 * PAYLOAD_RANGE: it is negative; nothing changes.
 */
FLASHRT_API int flashrt_set_lifetime(flashrt_writer *writer, int64_t lifetime_ns,
                                     flashrt_error *error);

enum {
  FLASHRT_UNCHECKED = 1, /* don't look at the payload: flashrt_check has passed it */
  FLASHRT_NO_RENEW = 2,  /* let a loan from before a reset be refused */
  FLASHRT_NO_NEXT = 4    /* don't borrow the next slot in the same message */
};

/* Check the slot on loan, hand it over, and borrow the next one.
 *
 * A loan that a reset, restore or interrupt made stale is replaced once: the payload is copied
 * into a slot borrowed now; of several engines that share the channel also where one alone
 * refuses it. A payload that is refused by the check stays on loan; whatever the engine answers,
 * the slot is not this writer's any more.
 *
 * stamp_ns         when the payload was true, on the writer's clock
 * source_sequence  the writer's own number, given back with what was made from it
 * flags            0, or FLASHRT_UNCHECKED and so on
 * sequence         the engine's number of the commit; may be NULL
 *
 * NON_FINITE, PAYLOAD_RANGE, LOAN: as flashrt_check. STALE_STAMP: the stamp is older than the
 * reset. STALE_GENERATION: a second reset came between, or FLASHRT_NO_RENEW. NO_FREE_SLOT: the
 * stale loan could not be replaced. ENGINE_GONE: the connection has ended.
 */
FLASHRT_API int flashrt_commit(flashrt_writer *writer, int64_t stamp_ns, uint64_t source_sequence,
                               unsigned flags, uint64_t *sequence, flashrt_error *error);

/* Give the slot on loan back unused. LOAN: none is. */
FLASHRT_API int flashrt_return_loan(flashrt_writer *writer, flashrt_error *error);

/* reading ----------------------------------------------------------------------------------- */

typedef enum flashrt_kind { FLASHRT_ACTION = 0, FLASHRT_CHUNK = 1 } flashrt_kind;

/* An action or chunk, and what it was made from. Sequences are 0 for none.
 *
 * Drop what carries another engine_epoch or an older generation than was seen before.
 */
typedef struct flashrt_output {
  flashrt_kind kind;
  const float *values;   /* action_dim numbers, or horizon rows of them; good until the release */
  uint32_t num_values;
  uint32_t index;        /* an action's place in its chunk */
  uint64_t missed;       /* outputs that newer ones replaced since the last */
  int64_t produced_ns;   /* CLOCK_MONOTONIC */
  uint64_t engine_epoch;
  uint32_t env_index;
  int64_t branch;        /* -1 for the environment itself */
  uint64_t generation;   /* grows with every restore, reset, interrupt, ... */
  uint64_t sequence;     /* of outputs; only grows */
  int64_t tick;
  int64_t latched_tick;
  uint64_t goal_sequence; /* as flashrt_commit gave it */
  uint64_t goal_source_sequence;
  int64_t goal_stamp_ns;
  int64_t goal_expires_ns; /* don't act on it from then on, its writer's clock; 0 for never */
  uint64_t observation_sequence;
  int64_t observation_stamp_ns;
  char capsule_id[FLASHRT_CAPSULE_ID_BYTES];
  int32_t slot; /* where a large one lies; -1 for one that came in its message */
} flashrt_output;

/* Choose what flashrt_read gets from here on. A connection reads one environment.
 *
 * UNKNOWN_ENVIRONMENT: the engine has none such. BUSY: it takes no more readers. UNSUPPORTED:
 * this connection reads another environment. SHARED_MEMORY: as flashrt_open_writer.
 */
FLASHRT_API int flashrt_subscribe(flashrt_client *client, uint32_t env_index, bool actions,
                                  bool chunks, flashrt_error *error);

/* Wait for the next output.
 *
 * The engine sends one of a kind and waits for its release; what it makes meanwhile replaces
 * what waits. Returns FLASHRT_NOTHING when `timeout_ms` is up (0 looks once).
 * ENGINE_GONE: the connection has ended. PROTOCOL: the engine sent what it must not.
 */
FLASHRT_API int flashrt_read(flashrt_client *client, flashrt_output *output, int timeout_ms,
                             flashrt_error *error);

/* Let the engine send the next output of this kind; once for each. Its values are bad after it.
 * LOAN: it was released already. ENGINE_GONE: the connection has ended. */
FLASHRT_API int flashrt_release(flashrt_client *client, const flashrt_output *output,
                                flashrt_error *error);

#ifdef __cplusplus
}
#endif

#endif
