/* What the library's files share; nothing here is for callers. */
#ifndef FLASHRT_INTERNAL_H
#define FLASHRT_INTERNAL_H

#include <stdarg.h>
#include <sys/types.h>

#include "flashrt_slots.h"

/* messages: msgpack, as far as the engine and this library speak it (flashrt_message.c) ------ */

#define FR_MAX_MESSAGE_BYTES 65536
#define FR_MAX_REQUEST_BYTES 1024
#define FR_MAX_INLINE_BYTES 4096

enum fr_tag {
  FR_HELLO = 1,
  FR_PING = 2,
  FR_OPEN_WRITER = 3,
  FR_LOAN = 4,
  FR_COMMIT = 5,
  FR_RETURN = 6,
  FR_SUBSCRIBE = 7,
  FR_RELEASE = 8,
  FR_WELCOME = 64,
  FR_ACK = 65,
  FR_FAILURE = 66,
  FR_WRITER_OPENED = 67,
  FR_LOANED = 68,
  FR_COMMITTED = 69,
  FR_SUBSCRIBED = 70,
  FR_OUTPUT = 79,
  FR_EVENT = 80
};

/* Reads values in turn. Once one is not what it should be, is_bad stays set and everything read
 * is zero, so that a message is judged once, at its end. */
typedef struct fr_reader {
  const uint8_t *at, *end;
  bool is_bad;
} fr_reader;

typedef struct fr_bytes {
  const uint8_t *data;
  size_t length;
} fr_bytes;

/* Say whether `data` holds one msgpack value and nothing else. */
bool fr_is_whole(const uint8_t *data, size_t length);
void fr_skip(fr_reader *reader, uint64_t count);
/* Enter an array of `known` items or more; returns how many follow the known ones. */
uint64_t fr_read_array(fr_reader *reader, uint64_t known);
/* Enter a list whose items take `item_bytes` or more each. */
uint32_t fr_read_list(fr_reader *reader, size_t item_bytes);
uint64_t fr_read_u64(fr_reader *reader, uint64_t most);
int64_t fr_read_i64(fr_reader *reader);
uint32_t fr_read_u32(fr_reader *reader);
/* A number, or `otherwise` where there is none. */
double fr_read_double(fr_reader *reader, double otherwise);
fr_bytes fr_read_text(fr_reader *reader);
fr_bytes fr_read_binary(fr_reader *reader);

/* Writes values in turn into a buffer of its owner; is_full stays set once one did not fit. */
typedef struct fr_writer {
  uint8_t *start, *at, *end;
  bool is_full;
} fr_writer;

void fr_write_array(fr_writer *writer, uint8_t count);
void fr_write_u64(fr_writer *writer, uint64_t value);
void fr_write_i64(fr_writer *writer, int64_t value);
void fr_write_bool(fr_writer *writer, bool value);
void fr_write_text(fr_writer *writer, const char *text);

/* Fill in an error, where there is one, and return its code. */
int fr_fail(flashrt_error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same, from a message of the engine. */
int fr_fail_text(flashrt_error *error, int code, fr_bytes message);

/* address (flashrt_address.c) ----------------------------------------------------------------- */

int64_t fr_now_ms(void);
int fr_left_ms(int64_t expires_ms);
/* Connect within `wait_ms`; returns a code, and the socket in `fd`. */
int fr_dial(const char *engine, int wait_ms, int *fd, flashrt_error *error);

/* memory (flashrt_memory.c) ------------------------------------------------------------------- */

/* Strings of one message, each with an end; as long as the message is enough for them. */
typedef struct fr_pool {
  char *start, *at;
  size_t left;
} fr_pool;

bool fr_make_pool(fr_pool *pool, size_t message_bytes);
const char *fr_keep(fr_pool *pool, fr_bytes text);

/* Map received memory; closes `fd`. */
int fr_map(int fd, uint64_t num_bytes, bool is_writable, uint8_t **memory, flashrt_error *error);

/* connection (flashrt_connection.c) ----------------------------------------------------------- */

/* One kind of output: what came and was not read yet, or was read and not released. */
typedef struct fr_lane {
  bool is_wanted, is_kept, is_read;
  uint64_t arrival;
  flashrt_output output;
  _Alignas(16) uint8_t payload[FR_MAX_INLINE_BYTES];
} fr_lane;

struct flashrt_client {
  char *engine;
  int fd, timeout_ms;
  int64_t busy_poll_ns;
  pid_t process_id;
  flashrt_error ended; /* why the connection has ended; code 0 while it has not */
  uint64_t rid;
  uint64_t engine_epoch;
  fr_pool pool;
  flashrt_model model;
  const char **joint_names;
  flashrt_writer *writers;
  int64_t env_index; /* that outputs are read of, -1 for none */
  uint8_t *ring;     /* output slots, read-only; NULL for none */
  size_t ring_bytes;
  uint64_t output_slot_bytes;
  uint32_t num_output_slots;
  uint64_t num_arrivals;
  fr_lane lanes[2];
  uint8_t request[FR_MAX_REQUEST_BYTES];
  uint8_t incoming[FR_MAX_MESSAGE_BYTES];
};

/* Start a request with its number and a rid of its own; `count` further items follow. */
fr_writer fr_begin(flashrt_client *client, enum fr_tag tag, uint8_t count);
/* Send the request and wait for the reply `tag`; `reply` stands behind its rid then. A
 * descriptor is taken where `fd` is not NULL: -1 when none came; the caller owns it. */
int fr_exchange(flashrt_client *client, const fr_writer *request, enum fr_tag tag,
                fr_reader *reply, int *fd, flashrt_error *error);
/* Refuse calls once the connection has ended, and in a forked child. */
int fr_require(const flashrt_client *client, flashrt_error *error);
/* Wait until the socket is ready; false when the time is up. */
bool fr_wait(const flashrt_client *client, short events, int64_t expires_ms);
/* Send a message that has no reply. */
int fr_send(flashrt_client *client, const fr_writer *request, int64_t expires_ms,
            flashrt_error *error);
/* Receive what is there and keep it, an output; FLASHRT_NOTHING if nothing is. */
int fr_receive_output(flashrt_client *client, flashrt_error *error);
/* End the connection and return the code. */
int fr_end(flashrt_client *client, flashrt_error *error, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* outputs (flashrt_outputs.c), writers (flashrt_slots.c), payloads (flashrt_payload.c) --------- */

/* Keep an output that came; false when it is not one that may come. */
bool fr_keep_output(flashrt_client *client, fr_reader *reader);
/* Forget the writers, and unmap their rings where they are mapped. */
void fr_free_writers(flashrt_client *client, bool is_mapped);
size_t fr_item_bytes(flashrt_dtype dtype);
int fr_check_payload(const flashrt_channel *channel, const uint8_t *slot, flashrt_error *error);

#endif
