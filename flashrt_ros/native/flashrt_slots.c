/* Writers: loans, writing in place, commits. */
#define _GNU_SOURCE
#include "flashrt_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct flashrt_writer {
  flashrt_writer *next;
  flashrt_client *client;
  uint64_t number; /* the engine's, within the connection */
  flashrt_channel channel;
  flashrt_field_info *fields;
  fr_pool pool;
  uint8_t *memory; /* NULL once closed */
  size_t memory_bytes;
  bool has_loan;
  uint32_t slot;
  uint64_t ticket;
  int64_t lifetime_ns; /* of what is committed */
};

static const char *const dtype_names[] = {"float64", "float32", "float16", "bfloat16", "int64",
                                          "int32",   "int16",   "int8",    "uint8",    "bool"};

static bool is_text(fr_bytes text, const char *wanted)
{
  return text.length == strlen(wanted) && !memcmp(text.data, wanted, text.length);
}

/* opening ------------------------------------------------------------------------------------- */

/* Read a field. UNSUPPORTED if it can't be told here; else OK, is_bad says if it is nonsense. */
static int read_field(flashrt_writer *writer, fr_reader *message, flashrt_field_info *field,
                      flashrt_error *error)
{
  const int num_dtypes = sizeof dtype_names / sizeof *dtype_names;
  uint64_t more = fr_read_array(message, 7);
  int dtype = 0;
  field->name = fr_keep(&writer->pool, fr_read_text(message));
  field->num_dims = fr_read_list(message, 1);
  if (field->num_dims > FLASHRT_MAX_DIMS)
    return fr_fail(error, FLASHRT_UNSUPPORTED,
                   "field '%.64s' has too many dimensions: expected at most %d, found %u",
                   field->name, FLASHRT_MAX_DIMS, field->num_dims);
  field->num_items = 1;
  for (uint32_t i = 0; i < field->num_dims; i++) {
    field->shape[i] = fr_read_u64(message, UINT32_MAX);
    message->is_bad |= field->shape[i] && field->num_items > UINT32_MAX / field->shape[i];
    field->num_items *= message->is_bad ? 0 : field->shape[i];
  }
  fr_bytes name = fr_read_text(message);
  while (dtype < num_dtypes && !is_text(name, dtype_names[dtype]))
    dtype++;
  if (!message->is_bad && dtype == num_dtypes)
    return fr_fail(error, FLASHRT_UNSUPPORTED, "field '%.64s' has a dtype unknown here: found %.*s",
                   field->name, (int)(name.length < 64 ? name.length : 64),
                   (const char *)name.data);
  field->dtype = (flashrt_dtype)dtype;
  field->offset = fr_read_u64(message, UINT32_MAX);
  field->low = fr_read_double(message, -INFINITY);
  field->high = fr_read_double(message, INFINITY);
  field->units = fr_keep(&writer->pool, fr_read_text(message));
  fr_skip(message, more);
  if (message->is_bad)
    return FLASHRT_OK;
  /* Callers write through a typed pointer: it must be aligned, and within the slot. */
  size_t item_bytes = fr_item_bytes(field->dtype);
  field->num_bytes = field->num_items * item_bytes;
  message->is_bad = field->offset % item_bytes ||
                    field->offset + field->num_bytes > writer->channel.slot_bytes;
  return FLASHRT_OK;
}

/* Read a WriterOpened; the ring's size goes to `ring_bytes`. */
static int read_opened(flashrt_writer *writer, fr_reader *message, uint64_t *ring_bytes,
                       flashrt_error *error)
{
  flashrt_channel *channel = &writer->channel;
  int code = FLASHRT_OK;
  writer->number = fr_read_u64(message, UINT64_MAX);
  uint64_t more = fr_read_array(message, 7);
  channel->name = fr_keep(&writer->pool, fr_read_text(message));
  channel->role = fr_keep(&writer->pool, fr_read_text(message));
  channel->frame = fr_keep(&writer->pool, fr_read_text(message));
  channel->slot_bytes = fr_read_u64(message, UINT32_MAX);
  channel->num_ring_slots = fr_read_u32(message);
  *ring_bytes = fr_read_u64(message, INT64_MAX);
  channel->num_fields = fr_read_list(message, 8);
  writer->fields = calloc(channel->num_fields + 1u, sizeof *writer->fields);
  if (!writer->fields)
    return fr_fail(error, FLASHRT_INTERNAL, "no memory is left");
  channel->fields = writer->fields;
  for (uint32_t i = 0; i < channel->num_fields && !code && !message->is_bad; i++)
    code = read_field(writer, message, &writer->fields[i], error);
  if (code)
    return code;
  fr_skip(message, more);
  fr_read_u64(message, UINT64_MAX); /* environment */
  fr_read_u64(message, UINT64_MAX); /* the ring's place in the channel */
  channel->inode = fr_read_u64(message, UINT64_MAX);
  channel->device = fr_read_u64(message, UINT64_MAX);
  uint64_t used_bytes = channel->slot_bytes * channel->num_ring_slots;
  /* 64: every dtype is aligned at the start of every slot. */
  if (message->is_bad || !used_bytes || used_bytes > *ring_bytes || channel->slot_bytes % 64)
    return fr_end(writer->client, error, FLASHRT_PROTOCOL,
                  "engine '%s' says nothing usable of a ring", writer->client->engine);
  return FLASHRT_OK;
}

static void free_writer(flashrt_writer *writer)
{
  free(writer->fields);
  free(writer->pool.start);
  free(writer);
}

int flashrt_open_writer(flashrt_client *client, const char *channel, uint32_t env_index,
                        flashrt_writer **out, flashrt_error *error)
{
  fr_reader reply;
  uint64_t ring_bytes = 0;
  int fd = -1;
  *out = NULL;
  fr_writer request = fr_begin(client, FR_OPEN_WRITER, 2);
  fr_write_text(&request, channel);
  fr_write_u64(&request, env_index);
  int code = fr_exchange(client, &request, FR_WRITER_OPENED, &reply, &fd, error);
  if (code)
    return code;
  flashrt_writer *writer = calloc(1, sizeof *writer);
  if (!writer || !fr_make_pool(&writer->pool, (size_t)(reply.end - reply.at))) {
    code = fr_fail(error, FLASHRT_INTERNAL, "no memory is left");
  } else if (fd < 0) {
    code = fr_end(client, error, FLASHRT_PROTOCOL, "no memory came with a ring");
  } else {
    writer->client = client;
    code = read_opened(writer, &reply, &ring_bytes, error);
  }
  if (!code) {
    code = fr_map(fd, ring_bytes, true, &writer->memory, error);
    fd = -1;
  }
  if (code) {
    if (fd >= 0)
      close(fd);
    if (writer)
      free_writer(writer);
    return code;
  }
  writer->memory_bytes = (size_t)ring_bytes;
  writer->next = client->writers;
  client->writers = *out = writer;
  return FLASHRT_OK;
}

const flashrt_channel *flashrt_get_channel(const flashrt_writer *writer)
{
  return &writer->channel;
}

/* loans --------------------------------------------------------------------------------------- */

/* Also before memory is touched that is not mapped in a forked child. */
static int require_open(const flashrt_writer *writer, flashrt_error *error)
{
  if (writer->memory)
    return fr_require(writer->client, error);
  return fr_fail(error, FLASHRT_LOAN, "the writer of channel '%.64s' is closed",
                 writer->channel.name);
}

static int require_loan(const flashrt_writer *writer, flashrt_error *error)
{
  int code = require_open(writer, error);
  if (code || writer->has_loan)
    return code;
  return fr_fail(error, FLASHRT_LOAN,
                 "no slot of channel '%.64s' is on loan to this writer; ask for a loan, and commit "
                 "it once",
                 writer->channel.name);
}

static uint8_t *slot_memory(const flashrt_writer *writer)
{
  return writer->memory + (size_t)writer->slot * writer->channel.slot_bytes;
}

/* Take over a slot that the engine named. */
static int begin_loan(flashrt_writer *writer, uint64_t slot, uint64_t ticket, flashrt_error *error)
{
  if (slot >= writer->channel.num_ring_slots)
    return fr_end(writer->client, error, FLASHRT_PROTOCOL,
                  "engine '%s' lent a slot that is not there: expected less than %u, found %llu",
                  writer->client->engine, writer->channel.num_ring_slots,
                  (unsigned long long)slot);
  writer->slot = (uint32_t)slot;
  writer->ticket = ticket;
  writer->has_loan = true;
  return FLASHRT_OK;
}

static int bad_reply(flashrt_writer *writer, flashrt_error *error)
{
  return fr_end(writer->client, error, FLASHRT_PROTOCOL,
                "a message of engine '%s' could not be decoded", writer->client->engine);
}

int flashrt_loan(flashrt_writer *writer, flashrt_error *error)
{
  fr_reader reply;
  int code = require_open(writer, error);
  if (code || writer->has_loan)
    return code;
  fr_writer request = fr_begin(writer->client, FR_LOAN, 1);
  fr_write_u64(&request, writer->number);
  code = fr_exchange(writer->client, &request, FR_LOANED, &reply, NULL, error);
  if (code)
    return code;
  uint64_t slot = fr_read_u64(&reply, UINT64_MAX);
  uint64_t ticket = fr_read_u64(&reply, UINT64_MAX);
  return reply.is_bad ? bad_reply(writer, error) : begin_loan(writer, slot, ticket, error);
}

void *flashrt_field(flashrt_writer *writer, const char *name, flashrt_dtype dtype,
                    uint64_t num_items, flashrt_error *error)
{
  const flashrt_channel *channel = &writer->channel;
  for (uint32_t i = 0; i < channel->num_fields; i++) {
    const flashrt_field_info *field = &channel->fields[i];
    if (strcmp(field->name, name))
      continue;
    if (field->dtype != dtype) {
      fr_fail(error, FLASHRT_PAYLOAD_TYPE,
              "field '%.64s' of channel '%.64s' has another dtype: expected %s", name,
              channel->name, dtype_names[field->dtype]);
      return NULL;
    }
    if (field->num_items != num_items) {
      fr_fail(error, FLASHRT_PAYLOAD_SHAPE,
              "field '%.64s' of channel '%.64s' has another shape: expected %llu items, found %llu",
              name, channel->name, (unsigned long long)field->num_items,
              (unsigned long long)num_items);
      return NULL;
    }
    return flashrt_loan(writer, error) ? NULL : slot_memory(writer) + field->offset;
  }
  fr_fail(error, FLASHRT_PAYLOAD_SHAPE, "channel '%.64s' has no field '%.64s'", channel->name,
          name);
  return NULL;
}

int flashrt_check(const flashrt_writer *writer, flashrt_error *error)
{
  int code = require_loan(writer, error);
  return code ? code : fr_check_payload(&writer->channel, slot_memory(writer), error);
}

static int hand_over(flashrt_writer *writer, int64_t stamp_ns, uint64_t source_sequence,
                     bool loan_next, uint64_t *sequence, bool *is_stale, flashrt_error *error)
{
  fr_reader reply;
  fr_writer request = fr_begin(writer->client, FR_COMMIT, 7);
  fr_write_u64(&request, writer->number);
  fr_write_u64(&request, writer->slot);
  fr_write_u64(&request, writer->ticket);
  fr_write_i64(&request, stamp_ns);
  fr_write_u64(&request, source_sequence);
  fr_write_bool(&request, loan_next);
  fr_write_i64(&request, writer->lifetime_ns);
  writer->has_loan = false; /* whatever is answered */
  int code = fr_exchange(writer->client, &request, FR_COMMITTED, &reply, NULL, error);
  if (code)
    return code;
  uint64_t committed = fr_read_u64(&reply, UINT64_MAX);
  fr_read_u64(&reply, UINT64_MAX); /* generation */
  int64_t next_slot = fr_read_i64(&reply);
  uint64_t next_ticket = fr_read_u64(&reply, UINT64_MAX);
  *is_stale = fr_read_u64(&reply, UINT64_MAX) > 0;
  if (reply.is_bad || next_slot < -1 || (next_slot >= 0 && !loan_next))
    return bad_reply(writer, error);
  if (sequence)
    *sequence = committed;
  return next_slot < 0 ? FLASHRT_OK : begin_loan(writer, (uint64_t)next_slot, next_ticket, error);
}

int flashrt_set_lifetime(flashrt_writer *writer, int64_t lifetime_ns, flashrt_error *error)
{
  if (lifetime_ns < 0)
    return fr_fail(error, FLASHRT_PAYLOAD_RANGE,
                   "a payload can't have a negative lifetime: expected 0 ns or more, found %lld",
                   (long long)lifetime_ns);
  writer->lifetime_ns = lifetime_ns;
  return FLASHRT_OK;
}

int flashrt_commit(flashrt_writer *writer, int64_t stamp_ns, uint64_t source_sequence,
                   unsigned flags, uint64_t *sequence, flashrt_error *error)
{
  bool loan_next = !(flags & FLASHRT_NO_NEXT);
  int code = require_loan(writer, error);
  if (!code && !(flags & FLASHRT_UNCHECKED))
    code = fr_check_payload(&writer->channel, slot_memory(writer), error);
  if (code)
    return code;
  const uint8_t *stale = slot_memory(writer);
  bool is_stale = false;
  code = hand_over(writer, stamp_ns, source_sequence, loan_next, sequence, &is_stale, error);
  /* Of engines that share the channel one alone may find it stale; the others have it then. */
  bool is_taken = !code;
  bool renews = is_taken ? is_stale : code == FLASHRT_STALE_GENERATION;
  if (!renews || (flags & FLASHRT_NO_RENEW))
    return code;
  code = flashrt_loan(writer, error);
  if (!code) {
    /* No other writer has this ring, so the old slot still holds what was written. */
    if (slot_memory(writer) != stale)
      memcpy(slot_memory(writer), stale, writer->channel.slot_bytes);
    code = hand_over(writer, stamp_ns, source_sequence, loan_next, sequence, &is_stale, error);
  }
  bool is_refused = code == FLASHRT_NO_FREE_SLOT || code == FLASHRT_STALE_GENERATION ||
                    code == FLASHRT_STALE_STAMP;
  return is_taken && is_refused ? FLASHRT_OK : code;
}

int flashrt_return_loan(flashrt_writer *writer, flashrt_error *error)
{
  fr_reader reply;
  int code = require_loan(writer, error);
  if (code)
    return code;
  fr_writer request = fr_begin(writer->client, FR_RETURN, 3);
  fr_write_u64(&request, writer->number);
  fr_write_u64(&request, writer->slot);
  fr_write_u64(&request, writer->ticket);
  writer->has_loan = false;
  return fr_exchange(writer->client, &request, FR_ACK, &reply, NULL, error);
}

/* the end ------------------------------------------------------------------------------------- */

void flashrt_close_writer(flashrt_writer *writer)
{
  if (!writer || !writer->memory || getpid() != writer->client->process_id)
    return;
  if (writer->has_loan && !writer->client->ended.code)
    flashrt_return_loan(writer, NULL);
  munmap(writer->memory, writer->memory_bytes);
  writer->memory = NULL;
}

void fr_free_writers(flashrt_client *client, bool is_mapped)
{
  while (client->writers) {
    flashrt_writer *writer = client->writers;
    client->writers = writer->next;
    if (writer->memory && is_mapped)
      munmap(writer->memory, writer->memory_bytes);
    free_writer(writer);
  }
}
